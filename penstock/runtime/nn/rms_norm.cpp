#include "penstock/runtime/nn/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <tuple>

#include "penstock/runtime/nn/block_sums.h"
#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {

RmsNorm::RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, exchange::Sums sums)
    : x_(x.detach()),
      weight_(weight.detach()),
      epsilon_(epsilon),
      sums_(sums),
      is_fused_(uses_cuda_kernels(x) && x.scalar_type() == weight.scalar_type()) {
  const at::NoGradGuard no_grad;
  if (is_fused_) {
    std::tie(output_, scales_) = at::_fused_rms_norm(x_, weight_.sizes(), weight_, epsilon);
    return;
  }
  const at::Tensor floats = x_.to(at::kFloat);
  scales_ = floats.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  output_ = weight_ * (floats * scales_).to(x.scalar_type());
}

at::Tensor RmsNorm::values() const { return x_.to(at::kFloat) * scales_; }

at::Tensor RmsNorm::output_again() const {
  const at::NoGradGuard no_grad;
  if (is_fused_) return std::get<0>(at::_fused_rms_norm(x_, weight_.sizes(), weight_, epsilon_));
  return weight_ * values().to(x_.scalar_type());
}

at::Tensor RmsNorm::gradient_of_input(const at::Tensor& gradient) const {
  const at::NoGradGuard no_grad;
  if (is_fused_) {
    return std::get<0>(at::_fused_rms_norm_backward(gradient, x_, weight_.sizes(), scales_, weight_,
                                                    {true, false}));
  }
  const at::Tensor normed = values();
  const at::Tensor of_values = (gradient * weight_).to(at::kFloat);
  const at::Tensor along = (of_values * normed).mean(-1, /*keepdim=*/true);
  return of_values.sub(normed.mul_(along)).mul_(scales_).to(x_.scalar_type());
}

at::Tensor RmsNorm::gradient_of_weight(const at::Tensor& gradient) const {
  const at::NoGradGuard no_grad;
  if (is_fused_) {  // The weight's values are not part of it.
    const at::Tensor any = at::empty_like(weight_);
    return std::get<1>(
        at::_fused_rms_norm_backward(gradient, x_, weight_.sizes(), scales_, any, {false, true}));
  }
  const at::Tensor of_rows = gradient * values().to(gradient.scalar_type());
  const bool as_they_come = sums_ == exchange::Sums::AsTheyCome;
  return as_they_come ? of_rows.flatten(0, -2).sum(0) : sum_of_rows(of_rows);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    exchange::Sums sums) {
  RmsNorm norm(x, weight, epsilon, sums);
  const at::Tensor output = norm.output();
  norm.forget_output();  // The backward would keep it.
  return with_own_backward({output}, {x}, {weight},
                           {.of_inputs =
                                [norm](const Tensors& gradients) {
                                  return Tensors{norm.gradient_of_input(gradients[0])};
                                },
                            .of_weights =
                                [norm](const Tensors& gradients) {
                                  return Tensors{norm.gradient_of_weight(gradients[0])};
                                }})
      .front();
}

}  // namespace penstock::nn
