#include "penstock/runtime/nn/rms_norm.h"

#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/grad_mode.h>

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

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
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

}  // namespace penstock::nn
