#include "penstock/plan/lower/value_steps.h"

namespace penstock::lower {

using schedule::Action;
using schedule::Op;

ValueSteps::ValueSteps(const schedule::Schedule& schedule)
    : microbatches_(static_cast<std::size_t>(schedule.microbatches)),
      forward_(static_cast<std::size_t>(schedule.stages) * microbatches_),
      backward_(schedule.purpose == schedule::Purpose::Train ? forward_.size() : 0) {
  for (const schedule::Program& program : schedule.programs) {
    for (std::size_t step = 0; step < program.size(); ++step) {
      const Action& action = program[step];
      const bool backward = action.op == Op::Backward || action.op == Op::BackwardInput;
      if (!backward && action.op != Op::Forward) continue;
      auto& steps = backward ? backward_ : forward_;
      steps[cell(action.stage, *action.microbatch)] = static_cast<std::int32_t>(step);
    }
  }
}

}  // namespace penstock::lower
