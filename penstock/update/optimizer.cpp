#include "penstock/update/optimizer.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "penstock/core/check.h"
#include "penstock/update/offloaded_parts.h"

namespace penstock::update {
namespace {

// The kernels take complex numbers as pairs, as torch's own optimizers do.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor.resolve_neg();
}

template <class Pick>
std::vector<at::Tensor> gather(const std::vector<std::size_t>& which, const Pick& pick) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(which.size());
  for (const std::size_t i : which) tensors.push_back(as_real(pick(i)));
  return tensors;
}

}  // namespace

Optimizer::Optimizer(const config::OptimizerConfig& options, std::vector<at::Tensor> parameters,
                     OffloadedParts* memory)
    : options_(options),
      parameters_(std::move(parameters)),
      memory_(memory),
      states_(parameters_.size()) {}

at::Tensor Optimizer::fresh_state(std::size_t parameter) {
  const at::Tensor& like = parameters_[parameter];
  return memory_ == nullptr ? at::zeros_like(like) : memory_->zeros_like(parameter, like);
}

Optimizer::State Optimizer::fresh_adam_states(std::size_t parameter) {
  const auto scalar = parameters_[parameter].options().dtype(at::kFloat).requires_grad(false);
  return {at::zeros({}, scalar), fresh_state(parameter), fresh_state(parameter)};
}

std::vector<NamedState> Optimizer::states(std::size_t parameter) const {
  const State& state = states_[parameter];
  if (!state.average.defined()) return {};
  if (options_.type == config::OptimizerType::Sgd) return {{"momentum_buffer", state.average}};
  return {{"step", state.step}, {"exp_avg", state.average}, {"exp_avg_sq", state.average_sq}};
}

std::vector<std::string_view> Optimizer::state_names() const {
  if (options_.type != config::OptimizerType::Sgd) return {"step", "exp_avg", "exp_avg_sq"};
  if (options_.momentum == 0.0) return {};
  return {"momentum_buffer"};
}

// A momentum buffer of zeros gives what none does.
void Optimizer::reset_states(std::size_t parameter) {
  const torch::NoGradGuard no_grad;
  for (const NamedState& state : states(parameter)) state.tensor.zero_();
}

void Optimizer::make_states(std::size_t parameter) {
  State& state = states_[parameter];
  if (state.average.defined()) return;
  const torch::NoGradGuard no_grad;
  switch (options_.type) {
    case config::OptimizerType::AdamW:
    case config::OptimizerType::Adam:
      state = fresh_adam_states(parameter);
      return;
    case config::OptimizerType::Sgd:
      if (options_.momentum != 0.0) state.average = fresh_state(parameter);
      return;
  }
}

void Optimizer::step(double lr, std::size_t first, std::size_t end) {
  const torch::NoGradGuard no_grad;
  std::vector<std::size_t> which;
  for (std::size_t i = first; i < end; ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    PENSTOCK_CHECK(gradient.strides() == parameters_[i].strides(), "parameter ", i,
                   ": the kernels ignore strides");
    which.push_back(i);
  }
  if (which.empty()) return;
  switch (options_.type) {
    case config::OptimizerType::AdamW:
    case config::OptimizerType::Adam:
      return step_adam(lr, which);
    case config::OptimizerType::Sgd:
      return step_sgd(lr, which);
  }
}

void Optimizer::step_adam(double lr, const std::vector<std::size_t>& which) {
  for (const std::size_t i : which) {
    if (!states_[i].step.defined()) states_[i] = fresh_adam_states(i);
  }
  const auto steps = gather(which, [&](std::size_t i) { return states_[i].step; });
  for (const at::Tensor& step : steps) step.add_(1);
  const auto parameters = gather(which, [&](std::size_t i) { return parameters_[i]; });
  const auto gradients = gather(which, [&](std::size_t i) { return parameters_[i].grad(); });
  const auto averages = gather(which, [&](std::size_t i) { return states_[i].average; });
  const auto squares = gather(which, [&](std::size_t i) { return states_[i].average_sq; });
  const auto update = [&](const auto& kernel) {
    kernel(parameters, gradients, averages, squares, /*max_exp_avg_sqs=*/at::TensorList{}, steps,
           lr, options_.betas[0], options_.betas[1], options_.weight_decay, options_.eps,
           /*amsgrad=*/false, /*maximize=*/false);
  };
  if (options_.is_decoupled()) {
    update([](auto&&... each) { at::_fused_adamw_(each...); });
  } else {
    update([](auto&&... each) { at::_fused_adam_(each...); });
  }
}

void Optimizer::step_sgd(double lr, const std::vector<std::size_t>& which) {
  const auto apply = [&](const std::vector<std::size_t>& some, bool first) {
    if (some.empty()) return;
    at::_fused_sgd_(
        gather(some, [&](std::size_t i) { return parameters_[i]; }),
        gather(some, [&](std::size_t i) { return parameters_[i].grad(); }),
        options_.momentum == 0.0 ? std::vector<at::Tensor>{}
                                 : gather(some, [&](std::size_t i) { return states_[i].average; }),
        options_.weight_decay, options_.momentum, lr, /*dampening=*/0.0, /*nesterov=*/false,
        /*maximize=*/false, first);
  };
  // A momentum buffer starts as the first gradient, so parameters that step for the first time
  // are told apart.
  std::vector<std::size_t> fresh, known;
  for (const std::size_t i : which) {
    State& state = states_[i];
    const bool is_fresh = options_.momentum != 0.0 && !state.average.defined();
    if (is_fresh) state.average = fresh_state(i);
    (is_fresh ? fresh : known).push_back(i);
  }
  apply(fresh, /*first=*/true);
  apply(known, /*first=*/false);
}

}  // namespace penstock::update
