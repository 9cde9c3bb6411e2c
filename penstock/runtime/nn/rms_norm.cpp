#include "penstock/runtime/nn/rms_norm.h"

#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <array>
#include <tuple>

#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {
namespace {

struct Normed {
  at::Tensor x;
  at::Tensor scales;  // [..., 1], float: one over the root.

  at::Tensor values() const { return x.to(at::kFloat) * scales; }
};

at::Tensor gradient_of_input(const Normed& normed, const at::Tensor& weight,
                             const at::Tensor& gradient) {
  const at::Tensor values = normed.values();
  const at::Tensor of_values = (gradient * weight).to(at::kFloat);
  const at::Tensor along = (of_values * values).mean(-1, /*keepdim=*/true);
  return of_values.sub(values.mul_(along)).mul_(normed.scales).to(normed.x.scalar_type());
}

at::Tensor gradient_of_weight(const Normed& normed, const at::Tensor& gradient) {
  const at::Tensor values = normed.values().to(gradient.scalar_type());
  return (gradient * values).flatten(0, -2).sum(0);
}

// Uses operators of any device, which round the normed values to x's type before the weight.
at::Tensor plain(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  Normed normed{.x = x.detach()};
  at::Tensor output;
  {
    const torch::NoGradGuard no_grad;
    const at::Tensor floats = normed.x.to(at::kFloat);
    normed.scales = floats.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
    output = weight * (floats * normed.scales).to(x.scalar_type());
  }
  return with_own_backward({output}, {x}, {weight},
                           {.of_inputs =
                                [normed, w = weight.detach()](const Tensors& gradients) {
                                  return Tensors{gradient_of_input(normed, w, gradients[0])};
                                },
                            .of_weights =
                                [normed](const Tensors& gradients) {
                                  return Tensors{gradient_of_weight(normed, gradients[0])};
                                }})
      .front();
}

// Uses a kernel for each direction, which torch has for CUDA.
at::Tensor fused(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor input = x.detach(), scale = weight.detach();
  at::Tensor output, roots;
  {
    const torch::NoGradGuard no_grad;
    std::tie(output, roots) = at::_fused_rms_norm(input, scale.sizes(), scale, epsilon);
  }
  const auto backward = [=](const at::Tensor& gradient, const at::Tensor& weights,
                            std::array<bool, 2> which) {
    return at::_fused_rms_norm_backward(gradient, input, weights.sizes(), roots, weights, which);
  };
  return with_own_backward(
             {output}, {x}, {weight},
             {.of_inputs =
                  [=](const Tensors& gradients) {
                    return Tensors{std::get<0>(backward(gradients[0], scale, {true, false}))};
                  },
              .of_weights =
                  [=](const Tensors& gradients) {  // The weight's values are not part of it.
                    const at::Tensor any = at::empty_like(scale);
                    return Tensors{std::get<1>(backward(gradients[0], any, {false, true}))};
                  }})
      .front();
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const bool is_fused = x.is_cuda() && x.scalar_type() == weight.scalar_type();
  return is_fused ? fused(x, weight, epsilon) : plain(x, weight, epsilon);
}

}  // namespace penstock::nn
