// The calls that all ranks make together: which one a thread is in, and its number.
//
// A public function that speaks to other ranks opens a Call at its begin; those that it calls in
// turn belong to it.  Each communicator has a CallLog, which numbers a Call when it is first spoken
// in.  So a call that speaks to nobody is nobody else's business, and ranks may compare the others
// by number.  call_words.h says in words where ranks are; call_watch.h compares them.  Knows no
// functions by name.
// Thread safety: a Call is of one thread; everything else is for any.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace penstock::comm {

// Who makes a call together: all ranks of a communicator, which number it, or some of them.
enum class Callers : std::uint8_t { All, Some };

class Call {
 public:
  explicit Call(std::string_view name, Callers callers = Callers::All) { begin(name, callers); }
  ~Call() { end(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // The same for languages without scopes, on one thread.
  static void begin(std::string_view name, Callers callers = Callers::All);
  static void end();

  // The name of the call that this thread is in; empty: it is in none.
  static std::string_view name();
  // Tells that the call speaks to other ranks by other means than a communicator.
  static void speaks();
};

// The place of a rank among its calls, in the eyes of one communicator.
struct CallPlace {
  std::string name;         // The call that it is in, or its last one; empty: there was none.
  bool is_inside = false;   // The call has not ended.
  bool has_spoken = false;  // It has spoken to other ranks, over this communicator or another.
  std::int64_t number = 0;  // The call's number, if this communicator has numbered it; else 0.
  std::int64_t spoken = 0;  // How often this communicator has been used.

  bool operator==(const CallPlace&) const = default;
};
// parse_call_place(to_text(place)) == place.
std::string to_text(const CallPlace& place);
CallPlace parse_call_place(const std::string& text);

struct CallsOfThread;

// The calls of one rank in which one communicator is used.
class CallLog {
 public:
  // The thread that makes it is taken for the one that makes the calls, until another one speaks.
  CallLog();

  // Tells that this rank speaks to others.  Costs nanoseconds, but for the first time in a call.
  void speak();
  CallPlace place() const;
  // Calls are numbered from the beginning, as on all ranks; that which this thread is in is new.
  void forget();

 private:
  void number(const std::shared_ptr<CallsOfThread>& calls, std::uint64_t call);

  mutable std::mutex mutex_;
  std::shared_ptr<CallsOfThread> calls_;  // The calls of the thread that spoke last.
  std::int64_t number_ = 0;               // Number of the last call that has one.
  std::uint64_t numbered_ = 0;            // The same call's number in the process.
  std::atomic<std::uint64_t> heard_{0};   // The last call that was spoken in.
  std::atomic<std::int64_t> spoken_{0};
};

}  // namespace penstock::comm
