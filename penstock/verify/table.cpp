#include "penstock/verify/table.h"

#include "penstock/core/check.h"

namespace penstock::verify {

using schedule::Action;
using schedule::Op;

Table::Table(std::int32_t stages, std::int32_t microbatches)
    : stages_(stages),
      microbatches_(microbatches),
      places_(schedule::kOps * static_cast<std::size_t>(stages) *
                  static_cast<std::size_t>(microbatches) +
              static_cast<std::size_t>(stages)) {}

std::size_t Table::cell(const Action& action) const {
  const auto stages = static_cast<std::size_t>(stages_);
  const auto microbatches = static_cast<std::size_t>(microbatches_);
  const std::size_t stage = action.stage.index();
  if (action.op == Op::ReduceGradients && !action.microbatch) {
    return schedule::kOps * stages * microbatches + stage;
  }
  const std::size_t microbatch = action.microbatch ? action.microbatch->index() : 0;
  return (static_cast<std::size_t>(action.op) * stages + stage) * microbatches + microbatch;
}

const std::optional<Place>& Table::at(const Action& action) const { return places_[cell(action)]; }

void Table::set(const Action& action, const Place& place) { places_[cell(action)] = place; }

Action Table::maker_of(const Action& action) const {
  if (action.op != Op::Backward || at(action)) return action;
  const Action input{
      .stage = action.stage, .op = Op::BackwardInput, .microbatch = action.microbatch};
  return at(input) ? input : action;
}

Needs needs_of(const Action& action, std::int32_t stages) {
  PENSTOCK_CHECK(schedule::is_compute(action.op), action);
  const auto of_stage = [&](std::int32_t stage, Op op) {
    return Action{.stage = StageId(stage), .op = op, .microbatch = action.microbatch};
  };
  const std::int32_t stage = action.stage.value;
  Needs needs;
  if (action.op == Op::Forward) {
    if (stage > 0) needs.arrival = of_stage(stage - 1, Op::Forward);
  } else if (action.op == Op::BackwardWeight) {
    needs.own = of_stage(stage, Op::BackwardInput);
  } else {
    needs.own = of_stage(stage, Op::Forward);
    if (stage + 1 < stages) needs.arrival = of_stage(stage + 1, Op::Backward);
  }
  return needs;
}

Action value_of(const Action& action) {
  const Op op = action.op == Op::BackwardInput ? Op::Backward : action.op;
  return {.stage = action.stage, .op = op, .microbatch = action.microbatch};
}

}  // namespace penstock::verify
