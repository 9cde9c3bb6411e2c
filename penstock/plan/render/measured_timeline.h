// A recorded step as a timeline, like simulated_timeline(): a bar from the arrival of an action's
// input for as long as it held its rank.
//
// The page of `penstock report` has one of each.  Knows no pixels.
// Units: milliseconds; memory in live activations.
#pragma once
#include "penstock/plan/measure/measured_step.h"
#include "penstock/plan/render/timeline.h"

namespace penstock::render {

// REQUIRES: `step` is of `schedule`.
Timeline measured_timeline(const verify::VerifiedSchedule& schedule,
                           const measure::MeasuredStep& step);

}  // namespace penstock::render
