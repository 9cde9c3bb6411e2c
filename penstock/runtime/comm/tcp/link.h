// Links over TCP, between hosts and where they are asked for: one connection per peer.
//
// A rank that waits for one of its links advances all of them, so none holds another up.  A message
// of another size than its receive is a CommError with both sizes.
// Thread safety: one thread at a time, but for admit().
#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/core/file_descriptor.h"
#include "penstock/runtime/comm/links.h"
#include "penstock/runtime/comm/tcp/io_thread.h"
#include "penstock/runtime/comm/tcp/stream.h"

namespace penstock::comm::tcp {

// This rank's ends of all its connections.
class Hub {
 public:
  // `rules` outlives it, and it outlives its links.
  Hub(Rank self, WaitRules& rules) : self_(self), rules_(rules) {}

  // The acceptor has let a connection in.  Any thread.
  void admit(Rank from, FileDescriptor socket);
  // Connections that nobody has taken are of no use any more.
  void forget_admitted();
  // A link to `peer`, which makes its end at the same time: the higher rank connects to the other's
  // acceptor, at `address`.
  // Throws: CommError at once when nobody listens there, and after the deadline.
  std::unique_ptr<Link> link(Rank peer, const std::string& address);

  // What links use.
  void add(const std::shared_ptr<Stream>& stream);
  void remove(const Stream& stream);
  void help(const std::shared_ptr<Stream>& stream) { io_.help(stream); }
  // Returns once `over`, which concerns `stream`.
  // Throws: CommError, which says what `describe` says.
  template <class Over, class Describe>
  void await(Stream& stream, const Over& over, const Describe& describe);

 private:
  FileDescriptor connect(Rank peer, const std::string& address) const;
  FileDescriptor await_connection(Rank peer);
  // Sleeps until a stream can go on, or `end`; advances those that can.
  void advance_ready(std::chrono::steady_clock::time_point end) const;

  Rank self_;
  WaitRules& rules_;
  std::vector<std::shared_ptr<Stream>> streams_;
  IoThread io_;
  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::map<Rank, FileDescriptor> admitted_;
};

}  // namespace penstock::comm::tcp
