// Converts between DeepSpeed's instructions and the actions of the IR.
//
// Both describe the same program: stage s is on rank s, and its F and B are whole.  The IR knows
// neither steps nor buffers, loads or the optimizer, so these are lost one way and made anew the
// other way.
#pragma once
#include "penstock/plan/schedule/deepspeed/stepped.h"
#include "penstock/schedule/schedule.h"

namespace penstock::schedule::deepspeed {

// The steps of a schedule, with every F at its earliest step of its stage's parity, every B at its
// earliest of the other parity (forward only: any step), and each message in the step in which its
// receiver needs it, just before.  Messages and reductions of `schedule` are not looked at: this
// dialect has its own places for them.
// Law: to_stepped of 1F1B is TrainSchedule, of forward_only InferenceSchedule.
// REQUIRES: a schedule that verifies.
// Throws: ScheduleError, which names the first action that has no such form: a stage that is not on
// the rank of its number, a split backward, an overlapped pair, UNSHARD and RESHARD, and an F out
// of the order of microbatches, in which loads and messages come.
SteppedSchedule to_stepped(const Schedule& schedule, TrainVersion version = TrainVersion::Original);

// The programs that the stages run, with their messages, microbatches followed through the buffers.
// Law: to_schedule(to_stepped(s)) has the F and B of s, and to_stepped() of that the same steps.
// Throws: ScheduleError with the first fault of trace() (trace.h): then there is no such program.
Schedule to_schedule(const SteppedSchedule& schedule);

}  // namespace penstock::schedule::deepspeed
