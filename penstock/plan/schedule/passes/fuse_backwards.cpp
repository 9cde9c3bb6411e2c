#include <utility>

#include "penstock/plan/schedule/passes/passes.h"

namespace penstock::schedule {
namespace {

bool are_halves(const Action& first, const Action& second) {
  return first.op == Op::BackwardInput && second.op == Op::BackwardWeight &&
         first.stage == second.stage && first.microbatch == second.microbatch;
}

}  // namespace

Schedule fuse_backwards(Schedule schedule, std::optional<StageId> only) {
  for (Program& program : schedule.programs) {
    Program result;
    result.reserve(program.size());
    for (const Action& action : program) {
      const bool of_stage = !only || action.stage == *only;
      if (of_stage && !result.empty() && are_halves(result.back(), action)) {
        result.back().op = Op::Backward;
      } else {
        result.push_back(action);
      }
    }
    program = std::move(result);
  }
  return schedule;
}

}  // namespace penstock::schedule
