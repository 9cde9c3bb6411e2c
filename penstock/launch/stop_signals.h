// A process that is asked to stop by a signal, and does so when it can: a rank after its step, and
// saved; `penstock train`, while no rank runs, before the next start.
//
// A program of ranks makes one at its start.  systemd, a batch system or torchrun signals every
// process of a job, not only the launcher.  Knows no steps: who trains asks requested().
#pragma once
#include <csignal>
#include <optional>
#include <vector>

#include "penstock/core/error.h"

namespace penstock::launch {

class StopSignals {
 public:
  // Makes SIGINT, SIGTERM, SIGHUP and SIGUSR1 only note the wish, unless they are ignored (nohup).
  // One more, kSameStopMs or later, ends the process at once, with the code of requested().
  // REQUIRES: no other StopSignals exists: handlers belong to the process.
  StopSignals();
  ~StopSignals();  // Restores what was there, and forgets what came.
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Interrupted for SIGINT, Preempted for the others; nothing: go on.
  std::optional<ExitCode> requested() const;

  // The signal that came first; nothing: none has, or no StopSignals exists.
  static std::optional<int> noted();

  // A terminal, a service manager and a launcher may each pass one wish on.
  static constexpr long kSameStopMs = 2000;

 private:
  struct Saved {
    int signal;
    struct sigaction action;
  };
  std::vector<Saved> saved_;
};

}  // namespace penstock::launch
