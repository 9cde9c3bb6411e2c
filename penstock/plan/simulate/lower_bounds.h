// Bounds on how fast a schedule could be at best: no order of the same actions can beat them.
//
// For people and for a search, which compare a makespan with the largest of them.  The bounds keep
// the costs and what the schedule has decided: which rank holds which stage, whether backwards are
// split or overlapped.  They leave the order free.
// Source: each bound's is in lower_bounds.cpp; Little's law for the last.
#pragma once
#include <string_view>
#include <vector>

#include "penstock/plan/simulate/costs.h"
#include "penstock/verify/verify.h"

namespace penstock::simulate {

// What is bounded: all that a schedule decides but the order of each rank's actions.
struct Work {
  const schedule::Schedule& actions;  // Actions of each rank, in any order.
  const schedule::Homes& homes;
  std::vector<double> memory_max;  // Limit on each rank's activations; infinite: none.
};

struct LowerBound {
  std::string_view name;     // "work", "pipe", "path", "warm-up", "memory".
  std::string_view meaning;  // One line.
  double makespan = 0.0;     // Time without gathers and reduces, with the optimizer.
};

// The bounds, in a fixed order.
// REQUIRES: compute actions and messages only, all that the stages have to do; costs that fit.
std::vector<LowerBound> lower_bounds(const Work& work, const Costs& costs);

// The same for schedules whose ranks keep no more activation memory than this one's (its peaks, as
// simulate() finds them).
// Throws: ConfigError for costs that do not fit the schedule.
std::vector<LowerBound> lower_bounds(const verify::VerifiedSchedule& schedule,
                                     const Costs& costs = {});

const LowerBound& highest(const std::vector<LowerBound>& bounds);

}  // namespace penstock::simulate
