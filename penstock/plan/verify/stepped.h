// Proves a schedule in DeepSpeed's form, whoever wrote its steps, before anything runs it.
//
// verify_stepped() returns every objection with the codes S060 to S069 of this form.  If there is
// none, it returns those of the same program in the IR.  Knows no engine and no time.
//
// The rules.  A step is atomic: every stage reaches its end even with a barrier of all stages
// between any two steps, and with sends and receives that block until both ends are there.  So the
// stages have equally many steps, both ends of a message are in one step, and within a step no
// stages wait for each other in a circle.  ReduceTiedGrads waits for every stage that holds a tied
// module.  A buffer holds what an instruction needs, and nothing that somebody still needs is
// overwritten: an input stays until its gradient has left (of the first stage, until it has run
// forward), an output until it has left and has run backward; what is loaded or received is used.
// The last stage's labels are those of its input.  A reduction comes behind the stage's last
// BackwardPass, OptimizerStep behind the reductions.  Cost: linear in instructions and steps.
#pragma once
#include <optional>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"
#include "penstock/verify/verify.h"

namespace penstock::verify {

struct SteppedOptions {
  // The stages that hold a tied module; absent: not known, so that all of them count.
  std::optional<std::vector<StageId>> tied_stages;
};

// Verifies the schedule.  The rank of a diagnostic is the stage, and its step that of the stage,
// both from 0.
// Throws: ScheduleError when tied_stages names a stage that the schedule has not.
Verdict verify_stepped(const schedule::deepspeed::SteppedSchedule& schedule,
                       const SteppedOptions& options = {});

}  // namespace penstock::verify
