// The place at which a rank's training stands, in the words of its launcher.
//
// Knows both, and nobody who listens.
// Thread safety: one thread asks.
#pragma once
#include <chrono>
#include <cstdint>

#include "penstock/launch/control_message.h"
#include "penstock/runtime/execute/progress.h"

namespace penstock::rank {

// Leaves waiting_ms out: a Position does not tell it.
launch::ProgressReport report_of(const execute::Position& position);

// Tells for how long a rank has waited, by its reports.
class Patience {
 public:
  // Sets waiting_ms of a report, the next one of a rank.
  void measure(launch::ProgressReport& report);

 private:
  std::uint64_t counter_ = 0;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

}  // namespace penstock::rank
