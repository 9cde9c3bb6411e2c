// How fast a schedule could be at best: bounds that no order of the same actions can beat.
//
// For people and for a search, which compare a makespan with the largest of them.  The bounds keep
// what the schedule has decided (which rank holds which stage, whether backwards are split or
// overlapped) and the costs, and let the order free.
// Source: each bound's is in lower_bounds.cpp; Little's law for the last.
#pragma once
#include <string_view>
#include <vector>

#include "penstock/simulate/costs.h"
#include "penstock/verify/verify.h"

namespace penstock::simulate {

struct LowerBound {
  std::string_view name;     // "work", "pipe", "path", "warm-up", "memory".
  std::string_view meaning;  // In a line.
  double makespan = 0.0;     // Without gathers and reduces, with the optimizer.
};

// In a fixed order.  "warm-up" and "memory" hold for schedules whose ranks keep no more activation
// memory than this one's (its peaks, as simulate() finds them).
// Throws: ConfigError for costs that do not fit the schedule.
std::vector<LowerBound> lower_bounds(const verify::VerifiedSchedule& schedule,
                                     const Costs& costs = {});

}  // namespace penstock::simulate
