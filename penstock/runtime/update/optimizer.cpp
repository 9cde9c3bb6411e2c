#include "penstock/runtime/update/optimizer.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <utility>

#include "penstock/core/check.h"
#include "penstock/runtime/update/offloaded_parts.h"

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
                     OffloadedParts* memory, const std::vector<std::string>& names)
    : options_(options),
      groups_(options),
      group_of_(parameters.size(), 0),
      parameters_(std::move(parameters)),
      memory_(memory),
      states_(parameters_.size()) {
  for (std::size_t i = 0; i < names.size(); ++i) group_of_[i] = groups_.group_of(names[i]);
}

at::Tensor Optimizer::fresh_state(std::size_t parameter) {
  const at::Tensor& like = parameters_[parameter];
  return memory_ == nullptr ? at::zeros_like(like) : memory_->zeros_like(parameter, like);
}

Optimizer::State Optimizer::fresh_adam_states(std::size_t parameter) {
  const auto scalar = parameters_[parameter].options().dtype(at::kFloat).requires_grad(false);
  State state{
      .step = at::zeros({}, scalar),
      .average = fresh_state(parameter),
      .average_sq = fresh_state(parameter),
  };
  if (options_.amsgrad) state.max_sq = fresh_state(parameter);
  return state;
}

std::vector<NamedState> Optimizer::states(std::size_t parameter) const {
  const State& state = states_[parameter];
  if (!state.average.defined()) return {};
  if (options_.type == config::OptimizerType::Sgd) {
    if (state.is_first) return {};
    return {{"momentum_buffer", state.average}};
  }
  std::vector<NamedState> all = {
      {"step", state.step}, {"exp_avg", state.average}, {"exp_avg_sq", state.average_sq}};
  if (options_.amsgrad) all.push_back({"max_exp_avg_sq", state.max_sq});
  return all;
}

std::vector<std::string_view> Optimizer::state_names() const {
  if (options_.type != config::OptimizerType::Sgd) {
    return options_.amsgrad
               ? std::vector<std::string_view>{"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
               : std::vector<std::string_view>{"step", "exp_avg", "exp_avg_sq"};
  }
  if (options_.momentum == 0.0) return {};
  return {"momentum_buffer"};
}

void Optimizer::reset_states(std::size_t parameter) {
  const torch::NoGradGuard no_grad;
  for (const NamedState& state : states(parameter)) state.tensor.zero_();
  states_[parameter].is_first = true;
}

void Optimizer::make_states(std::size_t parameter) {
  State& state = states_[parameter];
  state.is_first = false;
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
  std::vector<Turn> turns;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    turns.push_back(
        {.which = {}, .options = groups_.options(group), .lr = groups_.rate(group, lr)});
  }
  for (std::size_t i = first; i < end; ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    PENSTOCK_CHECK(gradient.strides() == parameters_[i].strides(), "parameter ", i,
                   ": the kernels ignore strides");
    turns[group_of_[i]].which.push_back(i);
  }
  for (const Turn& turn : turns) {
    if (turn.which.empty()) continue;
    switch (options_.type) {
      case config::OptimizerType::AdamW:
      case config::OptimizerType::Adam:
        step_adam(turn);
        break;
      case config::OptimizerType::Sgd:
        step_sgd(turn);
        break;
    }
  }
}

void Optimizer::step_adam(const Turn& turn) {
  const std::vector<std::size_t>& which = turn.which;
  const config::OptimizerConfig& options = turn.options;
  for (const std::size_t i : which) {
    if (!states_[i].step.defined()) states_[i] = fresh_adam_states(i);
  }
  const auto steps = gather(which, [&](std::size_t i) { return states_[i].step; });
  for (const at::Tensor& step : steps) step.add_(1);
  const auto parameters = gather(which, [&](std::size_t i) { return parameters_[i]; });
  const auto gradients = gather(which, [&](std::size_t i) { return parameters_[i].grad(); });
  const auto averages = gather(which, [&](std::size_t i) { return states_[i].average; });
  const auto squares = gather(which, [&](std::size_t i) { return states_[i].average_sq; });
  const auto largest = options.amsgrad
                           ? gather(which, [&](std::size_t i) { return states_[i].max_sq; })
                           : std::vector<at::Tensor>{};
  const auto update = [&](const auto& kernel) {
    kernel(parameters, gradients, averages, squares, largest, steps, turn.lr, options.betas[0],
           options.betas[1], options.weight_decay, options.eps, options.amsgrad,
           /*maximize=*/false);
  };
  if (options.is_decoupled()) {
    update([](auto&&... each) { at::_fused_adamw_(each...); });
  } else {
    update([](auto&&... each) { at::_fused_adam_(each...); });
  }
}

void Optimizer::step_sgd(const Turn& turn) {
  const config::OptimizerConfig& options = turn.options;
  const auto apply = [&](const std::vector<std::size_t>& some, bool first) {
    if (some.empty()) return;
    at::_fused_sgd_(
        gather(some, [&](std::size_t i) { return parameters_[i]; }),
        gather(some, [&](std::size_t i) { return parameters_[i].grad(); }),
        options.momentum == 0.0 ? std::vector<at::Tensor>{}
                                : gather(some, [&](std::size_t i) { return states_[i].average; }),
        options.weight_decay, options.momentum, turn.lr, options.dampening, options.nesterov,
        /*maximize=*/false, first);
  };
  // A momentum buffer starts as the first gradient, so parameters that step for the first time
  // are told apart.
  std::vector<std::size_t> fresh, known;
  for (const std::size_t i : turn.which) {
    State& state = states_[i];
    if (options.momentum != 0.0 && !state.average.defined()) state.average = fresh_state(i);
    const bool is_fresh = options.momentum != 0.0 && std::exchange(state.is_first, false);
    (is_fresh ? fresh : known).push_back(i);
  }
  apply(fresh, /*first=*/true);
  apply(known, /*first=*/false);
}

}  // namespace penstock::update
