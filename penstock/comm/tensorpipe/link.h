// Links over TensorPipe, which the torch wheel ships: TCP between hosts, asynchronous both ways.
//
// A pipe is strictly first in, first out: what comes is read at once, into the tensor of the
// receive that asks for its tag, or into memory of its own until one does.  A message of another
// size than its receive is a CommError with both sizes. TensorPipe's own rules are kept inside: a
// callback must not throw (that is std::terminate), and memory belongs to an operation until its
// callback has run.
#pragma once
#include <tensorpipe/core/context.h>

#include <memory>
#include <string>

#include "penstock/comm/links.h"

namespace penstock::comm {

// This rank's end of all its pipes.
class PipeHub {
 public:
  // Listens at `host`, a name or address of this machine, on a free port.
  // Throws: CommError.
  explicit PipeHub(const std::string& host);
  // Closes all pipes; links must be gone.
  ~PipeHub();
  PipeHub(const PipeHub&) = delete;
  PipeHub& operator=(const PipeHub&) = delete;

  // Where others find it: "uv://127.0.0.1:4711".
  const std::string& address() const { return address_; }

  // A link to `peer`, who makes its end at the same time: one of the two `connects` to the other's
  // address, the other takes the connection that names itself `peer`.
  // Throws: CommError after the deadline.
  std::unique_ptr<Link> link(Rank self, Rank peer, bool connects, const std::string& peer_address,
                             WaitRules& rules);

 private:
  struct Accepted;
  void accept_next();
  std::shared_ptr<tensorpipe::Pipe> await_connection(Rank self, Rank peer, WaitRules& rules);

  std::shared_ptr<tensorpipe::Context> context_;
  std::shared_ptr<tensorpipe::Listener> listener_;
  std::string address_;
  std::shared_ptr<Accepted> accepted_;
};

}  // namespace penstock::comm
