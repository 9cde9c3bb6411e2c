// The socket at which a rank listens for the other ranks, and the check of who is let in.
//
// A rank has one socket for all that others begin with it: news of a failure (alarm.h), questions
// (visit.h), and links (tcp/).  A caller first says a greeting: the acceptor's own word of 128
// random bits, which ranks tell each other through the store, what it wants, and its rank.  Whoever
// says anything else is cut off at the first byte that differs, and whoever is silent after five
// seconds; at most 256 callers are heard at a time, and the oldest makes room.  Nothing that a
// stranger sends is read as a length, kept, or seen by anybody else.  A thread that mostly sleeps
// does it. Thread safety: any thread.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "penstock/core/file_descriptor.h"
#include "penstock/core/ids.h"

namespace penstock::comm {

// Called by the acceptor's thread.
struct Visits {
  std::function<void(const std::string& text)> alarm;
  std::function<void(Rank from, FileDescriptor socket)> link;  // Non-blocking, at its first byte.
  std::function<std::string()> question = {};                  // The answer to it.
};

class Acceptor {
 public:
  // Listens at `host`, a name or address of this host, on a free port.
  // Throws: CommError when it cannot listen.
  Acceptor(const std::string& host, Visits visits);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // The address at which others reach it, and the word that they must say: "127.0.0.1 4711
  // 8d1f...".
  const std::string& address() const { return address_; }

 private:
  struct Listener;
  std::string address_;
  std::unique_ptr<Listener> listener_;
};

// The parts of an acceptor's address.
struct Door {
  std::string host;
  std::string port;
  std::string word;
};
Door parse_door(const std::string& address);

// What a caller says first.
enum class Purpose : char { Alarm = 'A', Link = 'L', Question = 'Q' };
std::string greeting(const std::string& word, Purpose purpose, Rank from);

inline constexpr std::size_t kNewsBytesMax = 32768;

}  // namespace penstock::comm
