#include "penstock/train/master_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

namespace penstock::train {

MasterWeights::MasterWeights(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  for (const at::Tensor& parameter : parameters_) {
    const bool is_short = c10::isReducedFloatingType(parameter.scalar_type());
    masters_.push_back(is_short ? parameter.detach().to(at::kFloat) : parameter);
  }
}

std::vector<MasterWeights::Run> MasterWeights::runs(std::int64_t elements) const {
  std::vector<Run> runs;
  std::int64_t room = 0;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    const std::int64_t taken = is_its_own(i) ? 0 : masters_[i].numel();
    if (runs.empty() || taken > room) {
      runs.push_back({.first = i});
      room = elements;
    }
    runs.back().end = i + 1;
    room -= taken;
  }
  return runs;
}

void MasterWeights::take_changes() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    if (is_its_own(i)) continue;
    const at::Tensor changed = masters_[i].to(parameters_[i].scalar_type()) != parameters_[i];
    masters_[i].copy_(at::where(changed, parameters_[i].to(at::kFloat), masters_[i]));
  }
}

void MasterWeights::take_gradients(Run run, const Unscale& unscale) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = run.first; i < run.end; ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    at::Tensor taken = gradient.defined() ? gradient.to(masters_[i].scalar_type()) : gradient;
    if (taken.defined() && unscale.scale != 1.0) taken.div_(unscale.scale);
    if (taken.defined() && unscale.factor != 1.0) taken.mul_(unscale.factor);
    if (!is_its_own(i)) masters_[i].mutable_grad() = std::move(taken);
  }
}

void MasterWeights::put_back(Run run) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = run.first; i < run.end; ++i) {
    if (is_its_own(i)) continue;
    if (masters_[i].grad().defined()) parameters_[i].copy_(masters_[i]);
    masters_[i].mutable_grad().reset();
  }
}

}  // namespace penstock::train
