// What takes another time in one window than in another one: stages, and the step.
//
// A change counts when it is a large share, and more than the spread of the samples: the middle
// halves of both windows' samples lie apart.  So the noise of a machine that does other work does
// not count.  Knows no reason for a change.
// Units: milliseconds.
#pragma once
#include <optional>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/adapt/window_costs.h"

namespace penstock::adapt {

struct StageChange {
  StageId stage;
  double before = 0.0;  // Time of a forward and a backward of one microbatch.
  double now = 0.0;
};

struct StepChange {
  double before = 0.0;
  double now = 0.0;
};

struct CostChange {
  std::vector<StageChange> stages;
  std::optional<StepChange> step;
  bool any() const { return !stages.empty() || step; }
};

// Whether one time differs so.
bool is_change(const Quartiles& before, const Quartiles& now, double share);

// share: of the time before, from which on a difference counts.
// REQUIRES: both are of all ranks, and of the same stages.
CostChange change_between(const WindowCosts& before, const WindowCosts& now, double share);

// What of `now` was in `earlier` already, the same way: longer, or shorter.
CostChange lasting(const CostChange& earlier, CostChange now);

}  // namespace penstock::adapt
