// A communicator that notes when its rank sends and receives, and when it waits.
//
// The ledger of a step has one (run/step_ledger.h).  Goes around a communicator that works, and
// changes nothing of what it does.  Knows no messages but by their times.
// Units: nanoseconds.  Thread safety: as the communicator's.
#pragma once
#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/probe/operator_times.h"

namespace penstock::probe {

// Calls since somebody began to note them; nothing is noted before.
struct MessageTimes {
  bool is_noted = false;
  std::vector<Interval> calls;  // Transfers that begin, and texts.
  std::vector<Interval> waits;  // Waits for a transfer, with the copy of what comes.
};

// Both outlive it.
std::unique_ptr<comm::Communicator> note_times(comm::Communicator& inner, MessageTimes& times);

}  // namespace penstock::probe
