#include "penstock/runtime/update/master_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <utility>

#include "penstock/runtime/parameters/parts.h"
#include "penstock/runtime/update/offloaded_parts.h"

namespace penstock::update {
namespace {

// Whether all of `parameter` are the bits of `master`, rounded.
template <class Short>
bool has_rounded_bits(const at::Tensor& master, const at::Tensor& parameter) {
  const auto* const from = master.const_data_ptr<float>();
  const auto* const to = parameter.const_data_ptr<Short>();
  constexpr std::int64_t kBlock = 1024;  // Elements between two looks at what was found.
  for (std::int64_t begin = 0; begin < parameter.numel(); begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, parameter.numel());
    unsigned differs = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      differs |= static_cast<unsigned>(static_cast<Short>(from[i]).x ^ to[i].x);
    }
    if (differs != 0) return false;
  }
  return true;
}

// What nearly every update finds, in one pass; a parameter of which this says no may be unchanged.
bool is_surely_unchanged(const at::Tensor& master, const at::Tensor& parameter) {
  const bool are_plain = parameter.is_cpu() && master.is_cpu() && parameter.is_contiguous() &&
                         master.is_contiguous() && master.scalar_type() == at::kFloat;
  if (!are_plain) return false;
  if (parameter.scalar_type() == at::kBFloat16) {
    return has_rounded_bits<c10::BFloat16>(master, parameter);
  }
  return parameter.scalar_type() == at::kHalf && has_rounded_bits<c10::Half>(master, parameter);
}

}  // namespace

MasterWeights::MasterWeights(std::vector<at::Tensor> parameters, MastersPlace place,
                             OffloadedParts* memory)
    : parameters_(std::move(parameters)) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const at::ScalarType own = parameter.scalar_type();
    const at::ScalarType type = parameters::master_type(own);
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

// All are compared before the host asks, once, which differ: a device has no other wait for it.
void MasterWeights::take_changes(PartRun run) {
  const at::NoGradGuard no_grad;
  const auto now = [&](std::size_t i) { return parameters_[i].to(masters_[i].device()); };
  const auto changed = [&](std::size_t i, const at::Tensor& parameter) {
    return masters_[i].to(parameter.scalar_type()) != parameter;
  };
  std::vector<std::size_t> compared;
  std::vector<at::Tensor> differ;
  for (std::size_t i = run.first; i < run.end; ++i) {
    if (is_its_own(i) || is_surely_unchanged(masters_[i], parameters_[i])) continue;
    compared.push_back(i);
    differ.push_back(changed(i, now(i)).any());
  }
  if (compared.empty()) return;
  const at::Tensor answers = at::stack(differ).cpu();
  for (std::size_t n = 0; n < compared.size(); ++n) {
    const std::size_t i = compared[n];
    if (!answers.const_data_ptr<bool>()[n])
      continue;  // What is not written stays clean, in a file.
    const at::Tensor parameter = now(i);
    masters_[i].copy_(
        at::where(changed(i, parameter), parameter.to(masters_[i].scalar_type()), masters_[i]));
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
