#include "penstock/update/master_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>

#include <utility>

#include "penstock/update/offloaded_parts.h"

namespace penstock::update {

MasterWeights::MasterWeights(std::vector<at::Tensor> parameters, MastersPlace place,
                             OffloadedParts* memory)
    : parameters_(std::move(parameters)) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const at::ScalarType own = parameter.scalar_type();
    const at::ScalarType type = master_type(own);
    const at::Device device = place == MastersPlace::Host ? at::kCPU : parameter.device();
    if (type == own && device == parameter.device()) {
      masters_.push_back(parameter);
      continue;
    }
    masters_.push_back(parameter.detach().to(device, type));
    if (memory == nullptr) continue;
    masters_[i] = memory->keep(i, masters_[i]);
    memory->let_go({.first = i, .end = i + 1});
  }
}

std::vector<PartRun> MasterWeights::runs(std::int64_t elements) const {
  std::vector<std::int64_t> taken;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    taken.push_back(is_its_own(i) ? 0 : masters_[i].numel());
  }
  return partition::part_runs(taken, elements);
}

void MasterWeights::take_changes(PartRun run) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = run.first; i < run.end; ++i) {
    if (is_its_own(i)) continue;
    const at::Tensor now = parameters_[i].to(masters_[i].device());
    const at::Tensor changed = masters_[i].to(now.scalar_type()) != now;
    if (!changed.any().item<bool>()) continue;  // What is not written stays clean, in a file.
    masters_[i].copy_(at::where(changed, now.to(masters_[i].scalar_type()), masters_[i]));
  }
}

void MasterWeights::take_gradients(PartRun run, const Unscale& unscale) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = run.first; i < run.end; ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    at::Tensor taken = gradient.defined()
                           ? gradient.to(masters_[i].device(), masters_[i].scalar_type())
                           : gradient;
    if (taken.defined() && unscale.scale != 1.0) taken.div_(unscale.scale);
    if (taken.defined() && unscale.factor != 1.0) taken.mul_(unscale.factor);
    if (!is_its_own(i)) masters_[i].mutable_grad() = std::move(taken);
  }
}

void MasterWeights::put_back(PartRun run) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = run.first; i < run.end; ++i) {
    if (is_its_own(i)) continue;
    if (masters_[i].grad().defined()) parameters_[i].copy_(masters_[i]);
    masters_[i].mutable_grad().reset();
  }
}

void MasterWeights::put_back_all() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    if (!is_its_own(i)) parameters_[i].copy_(masters_[i]);
  }
}

void MasterWeights::drop_gradients() {
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    if (!is_its_own(i)) masters_[i].mutable_grad().reset();
  }
}

}  // namespace penstock::update
