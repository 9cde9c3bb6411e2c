#include "penstock/runtime/nn/products.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/linear.h>

#include <optional>
#include <utility>

#include "penstock/runtime/nn/added_gradients.h"
#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/nn/host_products.h"

namespace penstock::nn {
namespace {

at::Tensor as_matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

bool are_floats_of_host(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && uses_host_kernels(x);
}

// Gives a matrix the sizes of x but for the last.  No view: it would hold the matrix, too.
at::Tensor shaped_like(const at::Tensor& matrix, const at::Tensor& x) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = matrix.size(1);
  return at::_unsafe_view(matrix, sizes);
}

std::optional<at::Tensor> bias_of(const Linear& linear) {
  return linear.bias.defined() ? std::optional(linear.bias) : std::nullopt;
}

bool add_onto_earlier(const at::Tensor& weight, const at::Tensor& of_rows, const at::Tensor& rows) {
  at::Tensor sum = earlier_gradient(weight);
  if (!sum.defined() || !adds_in_place(of_rows.t(), rows)) return false;
  add_product(sum, of_rows.t(), rows);
  tell_of_added(weight);
  return true;
}

}  // namespace

Linear detached(const Linear& linear) {
  return {.weight = linear.weight.detach(),
          .bias = linear.bias.defined() ? linear.bias.detach() : at::Tensor()};
}

at::Tensor output_of(const at::Tensor& x, const Linear& linear) {
  const at::Tensor& weight = linear.weight;
  if (!are_floats_of_host(x)) return at::linear(x, weight, bias_of(linear));
  const at::Tensor rows = as_matrix(x);
  if (!has_faster_product(rows, weight.t())) return at::linear(x, weight, bias_of(linear));
  at::Tensor output = product(rows, weight.t());
  if (linear.bias.defined()) output.add_(linear.bias);
  return shaped_like(output, x);
}

at::Tensor gradient_of_input(const std::vector<Linear>& linears, const Tensors& gradients) {
  at::Tensor sum, any;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    if (!gradients[i].defined()) continue;  // Nothing depends on that output.
    any = gradients[i];
    if (sum.defined()) {
      add_product(sum, as_matrix(any), linears[i].weight);
    } else {
      sum = product(as_matrix(any), linears[i].weight);
    }
  }
  return sum.defined() ? shaped_like(sum, any) : sum;
}

void append_gradients(Tensors& gradients, const Linear& linear, const at::Tensor& input,
                      const at::Tensor& gradient) {
  const std::size_t first = gradients.size();
  gradients.resize(first + (linear.bias.defined() ? 2 : 1));
  if (!gradient.defined()) return;
  const at::Tensor of_rows = as_matrix(gradient);
  if (linear.weight.requires_grad()) {
    const at::Tensor rows = as_matrix(input);
    if (!add_onto_earlier(linear.weight, of_rows, rows)) {
      gradients[first] = product(of_rows.t(), rows);
    }
  }
  if (linear.bias.defined() && linear.bias.requires_grad()) gradients[first + 1] = of_rows.sum(0);
}

void append_parameters(Tensors& parameters, const Linear& linear) {
  parameters.push_back(linear.weight);
  if (linear.bias.defined()) parameters.push_back(linear.bias);
}

Tensors linears_of(const at::Tensor& x, const std::vector<Linear>& linears) {
  Tensors outputs, parameters;
  if (!are_floats_of_host(x)) {
    for (const Linear& each : linears) {
      outputs.push_back(at::linear(x, each.weight, bias_of(each)));
    }
    return outputs;
  }
  const at::Tensor kept = x.detach();
  std::vector<Linear> held;
  {
    const at::NoGradGuard no_grad;
    for (const Linear& each : linears) {
      held.push_back(detached(each));
      outputs.push_back(output_of(kept, held.back()));
      append_parameters(parameters, each);
    }
  }
  const auto of_inputs = [held](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    return Tensors{gradient_of_input(held, gradients)};
  };
  const auto of_weights = [linears, kept](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    Tensors found;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      append_gradients(found, linears[i], kept, gradients[i]);
    }
    return found;
  };
  return with_own_backward(std::move(outputs), {x}, parameters,
                           {.of_inputs = of_inputs, .of_weights = of_weights});
}

at::Tensor linear_of(const at::Tensor& x, const Linear& linear) {
  return linears_of(x, {linear}).front();
}

}  // namespace penstock::nn
