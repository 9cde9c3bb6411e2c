#include "penstock/runtime/stage/stage_loss.h"

#include <utility>

#include "penstock/core/exception_text.h"
#include "penstock/runtime/stage/cut.h"

namespace penstock::stage {
namespace {

at::Tensor value_of(const nn::Loss& loss, const nn::Values& outputs, const nn::Values& targets) {
  try {
    return loss(outputs, targets);
  } catch (...) {
    rethrow_from("the loss");
  }
}

}  // namespace

at::Tensor StageLoss::of(const nn::Values& outputs, const LossCall& call) const {
  const nn::DrawScope scope(call.place, nullptr, call.draws);
  if (!untrained_ || !untrained_->is_due(call.place)) {
    return value_of(call.loss, outputs, call.targets);
  }
  Nodes known = Untrained::behind(outputs);
  at::Tensor value = value_of(call.loss, outputs, call.targets);
  untrained_->check_loss(value, std::move(known));
  return value;
}

at::Tensor StageLoss::apart(nn::Values outputs, const LossCall& call, KeptParts& kept) {
  if (!is_shared(call.loss)) {
    Cut cut = cut_off(outputs);
    outputs.clear();
    empty(cut.leaves);  // Lets the loss work in the outputs' memory.
    kept.parts.push_back({.leaves = std::move(cut.leaves)});
    return of(cut.values, call);
  }
  const nn::DrawScope scope(call.place, nullptr, call.draws);
  const bool is_due = untrained_ && untrained_->is_due(call.place);
  return run_of(call.loss).forward(std::move(outputs), call.targets,
                                   is_due ? untrained_.get() : nullptr, kept);
}

at::Tensor StageLoss::evaluate(nn::Values outputs, const LossCall& call, SampleSizes& sizes) {
  if (!is_shared(call.loss)) return of(outputs, call);
  return run_of(call.loss).evaluate(std::move(outputs), call.targets, sizes);
}

const LossRun& StageLoss::run_of(const nn::Loss& loss) {
  if (!run_ || run_->loss() != loss.pieces()) {
    run_ = std::make_unique<const LossRun>(loss.pieces(), exchanges_);
  }
  return *run_;
}

}  // namespace penstock::stage
