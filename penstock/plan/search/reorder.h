// The fastest order that is found for stages that stay where they are.
//
// adapt/ re-plans a run with it, whose weights do not move.  Every rank keeps to a memory of its
// own.  Where the schedule was already found to be the fastest, the answer has its times.
// Microbatches pass each stage in their order, 0, 1, 2 and so on: in forwards, and in backwards or
// their halves.
// Units: those of simulate::Costs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/plan/search/search.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/plan/simulate/lower_bounds.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"

namespace penstock::search {

struct Reorder {
  const verify::VerifiedSchedule& schedule;  // Its messages are not read.
  simulate::Costs costs;                     // Costs of its stages.
  std::vector<double> memory_max;  // Limits on activations, by rank, in the unit of `activation`.
};

struct Reordered {
  verify::VerifiedSchedule schedule;  // A compute order.
  simulate::Simulation simulation;    // Simulation of `schedule`.
  simulate::LowerBound bound;         // What no order of these stages in that memory can beat.
  std::int64_t rounds = 0;
};

// Why the schedule cannot be reordered; absent: it can.
std::optional<std::string> objection_to_reorder(const verify::VerifiedSchedule& schedule);

// The computations alone, in their order; pairs that overlap become an F and a B.
schedule::Schedule compute_order_of(const schedule::Schedule& schedule);

// REQUIRES: no objection; costs that fit; for each rank what one microbatch takes on its stages, or
// more.
Reordered reorder(const Reorder& request, const Budget& budget = {});

}  // namespace penstock::search
