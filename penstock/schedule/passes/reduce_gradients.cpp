#include <map>
#include <utility>

#include "penstock/schedule/passes/passes.h"

namespace penstock::schedule {
namespace {

bool makes_weight_gradients(Op op) { return op == Op::Backward || op == Op::BackwardWeight; }

}  // namespace

Schedule add_reduce_gradients(Schedule schedule) {
  for (Program& program : schedule.programs) {
    std::map<StageId, std::size_t> last_backward;
    for (std::size_t i = 0; i < program.size(); ++i) {
      if (makes_weight_gradients(program[i].op)) last_backward[program[i].stage] = i;
    }
    for (const Action& action : program) {
      if (action.op == Op::ReduceGradients) last_backward.erase(action.stage);
    }
    Program with_reduce;
    for (std::size_t i = 0; i < program.size(); ++i) {
      const Action& action = program[i];
      with_reduce.push_back(action);
      const auto last = last_backward.find(action.stage);
      if (last != last_backward.end() && last->second == i) {
        with_reduce.push_back({.stage = action.stage, .op = Op::ReduceGradients});
      }
    }
    program = std::move(with_reduce);
  }
  return schedule;
}

}  // namespace penstock::schedule
