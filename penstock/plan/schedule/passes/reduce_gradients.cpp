#include <utility>

#include "penstock/plan/schedule/passes/passes.h"

namespace penstock::schedule {
namespace {

bool makes_weight_gradients(Op op) { return op == Op::Backward || op == Op::BackwardWeight; }

// True, by stage, if it has all its Bs and Ws, and no reduction yet.
std::vector<bool> stages_to_reduce(const Schedule& schedule) {
  std::vector<std::int64_t> backwards(static_cast<std::size_t>(schedule.stages), 0);
  std::vector<bool> reduced(backwards.size(), false);
  for (const Program& program : schedule.programs) {
    for (const Action& action : program) {
      if (makes_weight_gradients(action.op)) ++backwards[action.stage.index()];
      if (action.op == Op::ReduceGradients) reduced[action.stage.index()] = true;
    }
  }
  std::vector<bool> to_reduce;
  for (std::size_t stage = 0; stage < backwards.size(); ++stage) {
    to_reduce.push_back(!reduced[stage] && backwards[stage] >= schedule.microbatches);
  }
  return to_reduce;
}

// Counts the Bs and Ws of the program, by stage.
std::vector<std::int64_t> backwards_of(const Program& program, std::size_t stages) {
  std::vector<std::int64_t> backwards(stages, 0);
  for (const Action& action : program) {
    if (makes_weight_gradients(action.op)) ++backwards[action.stage.index()];
  }
  return backwards;
}

}  // namespace

Schedule add_reduce_gradients(Schedule schedule, Reduction reduction) {
  const std::vector<bool> to_reduce = stages_to_reduce(schedule);
  for (Program& program : schedule.programs) {
    std::vector<std::int64_t> left = backwards_of(program, to_reduce.size());
    Program with_reduce;
    with_reduce.reserve(program.size());
    for (const Action& action : program) {
      with_reduce.push_back(action);
      std::int64_t& to_come = left[action.stage.index()];
      if (!makes_weight_gradients(action.op) || !to_reduce[action.stage.index()]) continue;
      --to_come;
      if (reduction == Reduction::OfEach) {
        with_reduce.push_back(
            {.stage = action.stage, .op = Op::ReduceGradients, .microbatch = action.microbatch});
      } else if (to_come == 0) {
        with_reduce.push_back({.stage = action.stage, .op = Op::ReduceGradients});
      }
    }
    program = std::move(with_reduce);
  }
  return schedule;
}

}  // namespace penstock::schedule
