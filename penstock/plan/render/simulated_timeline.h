// A simulation as a timeline: a lane of compute per rank, lanes for gathers and reductions where
// there are any, what was waited for, memory over time, the critical path.
//
// The pictures, pages and traces of simulated schedules start here.  Knows no pixels.
#pragma once
#include "penstock/plan/render/timeline.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"

namespace penstock::render {

// REQUIRES: `simulation` is of `schedule`, with Detail::Events.
Timeline simulated_timeline(const verify::VerifiedSchedule& schedule,
                            const simulate::Simulation& simulation);

}  // namespace penstock::render
