// A simulation as a timeline: one lane of compute per rank, what it waited for, memory over time.
//
// The pictures, pages and traces of simulated schedules start here.  Knows no pixels.
#pragma once
#include "penstock/render/timeline.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"

namespace penstock::render {

// REQUIRES: `simulation` is of `schedule` under `costs`.
Timeline simulated_timeline(const verify::VerifiedSchedule& schedule,
                            const simulate::Simulation& simulation,
                            const simulate::Costs& costs = {});

}  // namespace penstock::render
