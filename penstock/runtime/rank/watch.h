// Lets those outside of a command's work see where it stands: our launcher, or the other ranks.
//
// run/ has one around the work of each rank.  In a program of a user's own it does nothing:
// presence.h shows what that is at.  Whoever watches has the deadlines, and ends a wait by an
// interrupt. Thread safety: the constructor and the destructor belong to one thread.
#pragma once
#include <optional>

#include "penstock/comm/communicator.h"
#include "penstock/config/config.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/rank/peer_watch.h"
#include "penstock/runtime/rank/process_presence.h"
#include "penstock/runtime/rank/progress_report.h"

namespace penstock::rank {

class Watch {
 public:
  // Collective over all ranks.  Both references outlive it.
  Watch(comm::Communicator& communicator, const execute::Progress& progress,
        const config::LaunchConfig& launch);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  launch::ProgressReport report();

  Presence* const presence_;  // Null in a program of a user's own.
  const execute::Progress& progress_;
  Patience patience_;
  std::optional<PeerWatch> peers_;
  const execute::Leaving leaving_;  // The first to go.
};

}  // namespace penstock::rank
