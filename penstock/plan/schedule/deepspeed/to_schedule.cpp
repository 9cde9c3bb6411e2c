#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/plan/schedule/deepspeed/trace.h"

namespace penstock::schedule::deepspeed {
namespace {

// Absent where the IR has no word: loads, the reduction of tied weights, the optimizer.
std::optional<Op> op_of(Kind kind) {
  switch (kind) {
    case Kind::ForwardPass:
      return Op::Forward;
    case Kind::BackwardPass:
      return Op::Backward;
    case Kind::SendActivation:
      return Op::SendForward;
    case Kind::RecvActivation:
      return Op::RecvForward;
    case Kind::SendGrad:
      return Op::SendBackward;
    case Kind::RecvGrad:
      return Op::RecvBackward;
    case Kind::ReduceGrads:
      return Op::ReduceGradients;
    case Kind::LoadMicroBatch:
    case Kind::ReduceTiedGrads:
    case Kind::OptimizerStep:
      return {};
  }
  return {};
}

Program to_program(const StageSteps& steps, StageId stage,
                   const std::vector<std::optional<Microbatch>>& microbatches) {
  Program program;
  std::size_t i = 0;
  for (const Step& step : steps.steps) {
    for (const Instruction& instruction : step) {
      if (const auto op = op_of(instruction.kind)) {
        program.push_back({.stage = stage, .op = *op, .microbatch = microbatches[i]});
      }
      ++i;
    }
  }
  return program;
}

}  // namespace

Schedule to_schedule(const SteppedSchedule& stepped) {
  const Trace traced = trace(stepped);
  if (!traced.faults.empty()) {
    const TraceFault& first = traced.faults.front();
    throw ScheduleError(str("schedule ", stepped.name, " has no program: stage ", first.place.stage,
                            " step ", first.place.step, ": ", first.message),
                        {first.repair});
  }
  Schedule schedule{.name = stepped.name,
                    .purpose = trains(stepped) ? Purpose::Train : Purpose::Forward,
                    .stages = static_cast<std::int32_t>(stepped.stages.size()),
                    .microbatches = stepped.microbatches,
                    .programs = {}};
  for (std::size_t s = 0; s < stepped.stages.size(); ++s) {
    schedule.programs.push_back(to_program(stepped.stages[s], StageId(s), traced.microbatches[s]));
  }
  return schedule;
}

}  // namespace penstock::schedule::deepspeed
