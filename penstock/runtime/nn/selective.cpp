#include "penstock/runtime/nn/selective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include <memory>
#include <optional>

#include "penstock/runtime/nn/rms_norm.h"

namespace penstock::nn {
namespace {

// Copies that autograd does not see.
Linear detached(const Linear& linear) {
  return {.weight = linear.weight.detach(),
          .bias = linear.bias.defined() ? linear.bias.detach() : at::Tensor()};
}

at::Tensor applied(const Linear& linear, const at::Tensor& x) {
  return at::linear(x, linear.weight,
                    linear.bias.defined() ? std::optional(linear.bias) : std::nullopt);
}

at::Tensor rows(const at::Tensor& x) { return x.flatten(0, -2); }

at::Tensor gradient_of_input(const Linear& linear, const at::Tensor& gradient) {
  std::vector<std::int64_t> sizes = gradient.sizes().vec();
  sizes.back() = linear.weight.size(1);
  return at::mm(rows(gradient), linear.weight).view(sizes);
}

// Appends the gradients of its weight, and of its bias where it has one.
void add_gradients(Tensors& gradients, const Linear& linear, const at::Tensor& input,
                   const at::Tensor& gradient) {
  gradients.push_back(at::mm(rows(gradient).t(), rows(input)));
  if (linear.bias.defined()) gradients.push_back(rows(gradient).sum(0));
}

void add_weights(Tensors& weights, const Linear& linear) {
  weights.push_back(linear.weight);
  if (linear.bias.defined()) weights.push_back(linear.bias);
}

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate) * up; }

}  // namespace

Tensors linears_of_norm(const at::Tensor& x, const at::Tensor& norm_weight, double epsilon,
                        const std::vector<Linear>& linears, std::optional<std::int64_t> blocks) {
  RmsNorm norm(x, norm_weight, epsilon,
               blocks ? exchange::Sums::InBlocks : exchange::Sums::AsTheyCome);
  std::vector<Linear> held;
  Tensors outputs, weights = {norm_weight};
  {
    const at::NoGradGuard no_grad;
    for (const Linear& linear : linears) {
      held.push_back(detached(linear));
      outputs.push_back(blocks ? product_and_bias(norm.output(), held.back())
                               : applied(held.back(), norm.output()));
      add_weights(weights, linear);
    }
  }
  norm.forget_output();
  // What comes into the norm, from the gradients of inputs to those of weights, which need it too.
  const auto of_norm = std::make_shared<at::Tensor>();
  const auto sum_into_norm = [held, of_norm, blocks](const Tensors& gradients) {
    if (blocks) {
      *of_norm = gradient_of_shared(held, gradients, *blocks);
      return;
    }
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (!gradients[i].defined()) continue;  // Nothing depends on that output.
      const at::Tensor part = gradient_of_input(held[i], gradients[i]);
      *of_norm = of_norm->defined() ? of_norm->add_(part) : part;
    }
  };
  const auto of_inputs = [norm, of_norm, sum_into_norm](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    of_norm->reset();
    sum_into_norm(gradients);
    return Tensors{norm.gradient_of_input(*of_norm)};
  };
  const auto of_weights = [norm, of_norm, sum_into_norm, held, blocks](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    if (!of_norm->defined()) sum_into_norm(gradients);
    Tensors found = {norm.gradient_of_weight(*of_norm)};
    of_norm->reset();
    const at::Tensor input = norm.output_again();
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (gradients[i].defined() && blocks) {
        add_gradients_of(found, held[i], input, gradients[i]);
      } else if (gradients[i].defined()) {
        add_gradients(found, held[i], input, gradients[i]);
      } else {
        found.resize(found.size() + (held[i].bias.defined() ? 2 : 1));
      }
    }
    return found;
  };
  return with_own_backward(outputs, {x}, weights,
                           {.of_inputs = of_inputs, .of_weights = of_weights});
}

at::Tensor linear_of_gated(const at::Tensor& gate, const at::Tensor& up, const Linear& linear,
                           std::optional<std::int64_t> blocks) {
  const at::Tensor kept_gate = gate.detach(), kept_up = up.detach();
  const Linear held = detached(linear);
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor x = gated(kept_gate, kept_up);
    output = blocks ? product_in_blocks(x, held.weight, *blocks) : applied(held, x);
  }
  const auto of_inputs = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    const at::Tensor of_product = gradient_of_input(held, gradients[0]);
    return Tensors{at::silu_backward(of_product * kept_up, kept_gate),
                   of_product * at::silu(kept_gate)};
  };
  const auto of_weights = [=](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    Tensors found;
    add_gradients(found, held, gated(kept_gate, kept_up), gradients[0]);
    return found;
  };
  Tensors weights;
  add_weights(weights, linear);
  return with_own_backward({output}, {gate, up}, weights,
                           {.of_inputs = of_inputs, .of_weights = of_weights})
      .front();
}

}  // namespace penstock::nn
