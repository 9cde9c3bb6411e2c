// Whether the sends, receives and tied reductions of a stepped schedule meet, step by step.
//
// verify_stepped() calls it.  Every one of them blocks until the other ends are there, and a
// barrier stands between any two steps.  Knows no buffers: the k-th send from one stage to another
// meets the k-th receive there.
#pragma once
#include <string>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/schedule/deepspeed/trace.h"
#include "penstock/verify/verify.h"

namespace penstock::verify {

// Ends of a rendezvous that are not in one step (S060), one diagnostic each.  `tied` are the stages
// that ReduceTiedGrads waits for, in rising order.
std::vector<Diagnostic> scattered_ends(const schedule::deepspeed::SteppedSchedule& schedule,
                                       const std::vector<StageId>& tied);

// Steps in which stages wait for each other in a circle (S061), one diagnostic each.
// REQUIRES: no scattered ends.
std::vector<Diagnostic> circles(const schedule::deepspeed::SteppedSchedule& schedule,
                                const std::vector<StageId>& tied);

// "stage 1 step 4: RecvActivation(buffer_id=0) [ForwardPass(buffer_id=0)]".
std::string window(const schedule::deepspeed::SteppedSchedule& schedule,
                   const schedule::deepspeed::InstructionPlace& place);

}  // namespace penstock::verify
