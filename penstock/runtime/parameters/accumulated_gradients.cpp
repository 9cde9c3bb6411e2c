#include "penstock/runtime/parameters/accumulated_gradients.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "penstock/runtime/parameters/sum_type.h"
#include "penstock/runtime/parameters/taken_gradient.h"

namespace penstock::parameters {

AccumulatedGradients::AccumulatedGradients(std::vector<stage::NamedParameter> parameters,
                                           std::optional<at::ScalarType> type)
    : parameters_(std::move(parameters)), type_(type), sums_(parameters_.size()) {}

at::ScalarType AccumulatedGradients::type(std::size_t parameter) const {
  return sum_type(parameters_[parameter].tensor.scalar_type(), type_);
}

bool AccumulatedGradients::is_apart(std::size_t parameter) const {
  return type(parameter) != parameters_[parameter].tensor.scalar_type();
}

void AccumulatedGradients::add() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (is_apart(p)) add(p);
  }
}

void AccumulatedGradients::add(std::size_t parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradient = take_gradient(parameters_[parameter].tensor);
  if (!gradient.defined()) return;
  at::Tensor& sum = sums_[parameter];
  sum.defined() ? void(sum.add_(gradient)) : void(sum = gradient.to(type(parameter)));
}

at::Tensor AccumulatedGradients::take(std::size_t parameter) {
  if (!is_apart(parameter)) return take_gradient(parameters_[parameter].tensor);
  add(parameter);
  return std::exchange(sums_[parameter], at::Tensor());
}

void AccumulatedGradients::drop() {
  for (at::Tensor& sum : sums_) sum.reset();
}

}  // namespace penstock::parameters
