// Keeps signals from this thread while it lives; those that come are handled afterwards.
//
// For moments: the start of a thread or a process, and system calls that begin again at every
// signal.
#pragma once
#include <csignal>

namespace penstock {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace penstock
