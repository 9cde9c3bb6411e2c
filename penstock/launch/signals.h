// SIGINT, SIGTERM, SIGHUP and SIGUSR1 as bytes in a pipe, for the launcher's poll loop.
//
// Used by launcher.h.  A signal that this process was started with ignored (nohup, a background job
// of a shell script) stays ignored.
#pragma once
#include <csignal>
#include <optional>
#include <vector>

#include "penstock/core/file_descriptor.h"

namespace penstock::launch {

class SignalPipe {
 public:
  // Installs the handlers, and the default for SIGCHLD so that children can be waited for.
  // REQUIRES: no other SignalPipe exists: handlers belong to the process.
  SignalPipe();
  SignalPipe(SignalPipe&&) = delete;
  ~SignalPipe();

  // The handlers are those that were there before; take() still has what came until now.
  void restore();

  int fd() const { return read_end_.get(); }
  // The next signal that arrived; nothing when there is none.
  std::optional<int> take();

 private:
  void install(int signal, void (*handler)(int));

  struct Saved {
    int signal;
    struct sigaction action;
  };
  FileDescriptor read_end_;
  FileDescriptor write_end_;
  std::vector<Saved> saved_;
};

}  // namespace penstock::launch
