#include "penstock/runtime/nn/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <tuple>
#include <utility>

#include "penstock/runtime/nn/block_sums.h"
#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/nn/own_backward.h"
#include "penstock/runtime/nn/passes/passes.h"

namespace penstock::nn {
namespace {

using Wanted = RmsNorm::Wanted;

std::int64_t rows_of_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x.numel() / weight.numel();
}

bool can_pass(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight) {
  const at::Tensor& other = added.defined() ? added : x;
  return passes::can_fuse({x, other, weight}) && other.sizes() == x.sizes() &&
         weight.numel() == x.size(-1);
}

// Rows of x, with nothing added to them.
passes::NormRows rows_of(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                         const at::Tensor& scales, const at::Tensor& output) {
  return {.x = passes::floats(x),
          .added = nullptr,
          .weight = passes::floats(weight),
          .sum = nullptr,
          .scales = passes::floats(scales),
          .output = passes::floats(output),
          .rows = rows_of_norm(x, weight),
          .width = weight.numel(),
          .epsilon = static_cast<float>(epsilon),
          .has_scales = false};
}

at::Tensor a_number_a_row(const at::Tensor& x) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = 1;
  return at::empty(sizes, x.options());
}

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? a + b : a;
}

}  // namespace

RmsNorm::RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, exchange::Sums sums)
    : RmsNorm(x, {}, /*reuses=*/false, weight, epsilon, sums) {}

RmsNorm::RmsNorm(const at::Tensor& x, const at::Tensor& added, bool reuses,
                 const at::Tensor& weight, double epsilon, exchange::Sums sums)
    : x_(x.detach()),
      weight_(weight.detach()),
      epsilon_(epsilon),
      sums_(sums),
      kernel_(can_pass(x, added, weight) ? Kernel::Pass
              : uses_cuda_kernels(x) && x.scalar_type() == weight.scalar_type()
                  ? Kernel::Cuda
                  : Kernel::Operators) {
  const at::NoGradGuard no_grad;
  const at::Tensor other = added.defined() ? added.variable_data() : at::Tensor();
  if (kernel_ != Kernel::Pass) {
    if (other.defined()) x_ = x_ + other;
    compute();
    return;
  }
  scales_ = a_number_a_row(x_);
  output_ = at::empty_like(x_);
  std::vector<at::Tensor> reads = {x_, weight_}, writes = {scales_, output_};
  at::Tensor sum;
  if (other.defined()) {
    sum = reuses ? other : at::empty_like(x_);
    reads.push_back(other);
    writes.push_back(sum);
  }
  run(
      passes::kNorm,
      [&] {
        passes::NormRows rows = rows_of(x_, weight_, epsilon_, scales_, output_);
        rows.added = passes::floats(other);
        rows.sum = passes::floats(sum);
        return rows;
      },
      reads, writes);
  if (sum.defined()) x_ = std::move(sum);
}

void RmsNorm::compute() {
  if (kernel_ == Kernel::Cuda) {
    std::tie(output_, scales_) = at::_fused_rms_norm(x_, weight_.sizes(), weight_, epsilon_);
    return;
  }
  const at::Tensor floats = x_.to(at::kFloat);
  scales_ = floats.square().mean(-1, /*keepdim=*/true).add_(epsilon_).rsqrt_();
  output_ = weight_ * (floats * scales_).to(x_.scalar_type());
}

at::Tensor RmsNorm::values() const { return x_.to(at::kFloat) * scales_; }

at::Tensor RmsNorm::output_again() const {
  const at::NoGradGuard no_grad;
  switch (kernel_) {
    case Kernel::Cuda:
      return std::get<0>(at::_fused_rms_norm(x_, weight_.sizes(), weight_, epsilon_));
    case Kernel::Operators:
      return weight_ * values().to(x_.scalar_type());
    case Kernel::Pass:
      break;
  }
  at::Tensor output = at::empty_like(x_);
  run(passes::kNorm,
      [&] {
        passes::NormRows rows = rows_of(x_, weight_, epsilon_, scales_, output);
        rows.has_scales = true;
        return rows;
      },
      {x_, weight_, scales_}, {output});
  return output;
}

RmsNorm::Gradients RmsNorm::gradients(const at::Tensor& gradient, const at::Tensor& of_sum,
                                      Wanted wanted) const {
  const at::NoGradGuard no_grad;
  if (!gradient.defined()) return {.of_input = of_sum, .of_weight = {}};
  if (kernel_ == Kernel::Pass) return in_one_pass(gradient.contiguous(), of_sum, wanted);
  Gradients found;
  if (wanted != Wanted::OfWeight) found.of_input = sum_of(of_sum, gradient_of_input(gradient));
  if (wanted != Wanted::OfInput) found.of_weight = gradient_of_weight(gradient);
  return found;
}

at::Tensor RmsNorm::gradient_of_input(const at::Tensor& gradient) const {
  if (kernel_ == Kernel::Cuda) {
    return std::get<0>(at::_fused_rms_norm_backward(gradient, x_, weight_.sizes(), scales_, weight_,
                                                    {true, false}));
  }
  const at::Tensor normed = values();
  const at::Tensor of_values = (gradient * weight_).to(at::kFloat);
  const at::Tensor along = (of_values * normed).mean(-1, /*keepdim=*/true);
  return of_values.sub(normed.mul_(along)).mul_(scales_).to(x_.scalar_type());
}

at::Tensor RmsNorm::gradient_of_weight(const at::Tensor& gradient) const {
  if (kernel_ == Kernel::Cuda) {  // The weight's values are not part of it.
    const at::Tensor any = like_weight();
    return std::get<1>(
        at::_fused_rms_norm_backward(gradient, x_, weight_.sizes(), scales_, any, {false, true}));
  }
  return sum_over_rows(gradient * values().to(gradient.scalar_type()));
}

// Reads no values of it: under ZeRO 3 they may be away.
at::Tensor RmsNorm::like_weight() const { return at::empty(weight_.sizes(), weight_.options()); }

at::Tensor RmsNorm::sum_over_rows(const at::Tensor& of_rows) const {
  const bool as_they_come = sums_ == exchange::Sums::AsTheyCome;
  return as_they_come ? of_rows.flatten(0, -2).sum(0) : sum_of_rows(of_rows);
}

RmsNorm::Gradients RmsNorm::in_one_pass(const at::Tensor& gradient, const at::Tensor& of_sum,
                                        Wanted wanted) const {
  const bool in_groups = sums_ == exchange::Sums::AsTheyCome;
  const bool has_sum = wanted != Wanted::OfWeight && of_sum.defined();
  const at::Tensor added = has_sum ? of_sum.contiguous() : at::Tensor();
  Gradients found;
  at::Tensor of_rows, group;
  std::vector<at::Tensor> reads = {gradient, x_, scales_}, writes;
  if (has_sum) reads.push_back(added);
  if (wanted != Wanted::OfWeight) {
    reads.push_back(weight_);
    const bool reuses = has_sum && passes::nobody_else_reads(of_sum);
    found.of_input = reuses ? added : at::empty_like(x_);
    writes.push_back(found.of_input);
  }
  if (wanted != Wanted::OfInput && in_groups) {
    found.of_weight = like_weight();
    group = like_weight();
    writes.push_back(found.of_weight);
  } else if (wanted != Wanted::OfInput) {
    of_rows = at::empty_like(x_);
    writes.push_back(of_rows);
  }
  run(
      passes::kNormGradient,
      [&] {
        return passes::NormGradientRows{
            .gradient = passes::floats(gradient),
            .x = passes::floats(x_),
            .weight = wanted == Wanted::OfWeight ? nullptr : passes::floats(weight_),
            .scales = passes::floats(scales_),
            .of_sum = passes::floats(added),
            .of_x = passes::floats(found.of_input),
            .of_weight = passes::floats(found.of_weight),
            .of_rows = passes::floats(of_rows),
            .group = passes::floats(group),
            .rows = rows_of_norm(x_, weight_),
            .stride = weight_.numel(),
            .width = weight_.numel()};
      },
      reads, writes);
  if (of_rows.defined()) found.of_weight = sum_of_rows(of_rows);
  return found;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    exchange::Sums sums) {
  RmsNorm norm(x, weight, epsilon, sums);
  const at::Tensor output = norm.output();
  norm.forget_output();  // The backward would keep it.
  const auto gradients = [norm](const Tensors& of, Wanted wanted) {
    return norm.gradients(of[0], {}, wanted);
  };
  return with_own_backward({output}, {x}, {weight},
                           {.of_inputs =
                                [gradients](const Tensors& of) {
                                  return Tensors{gradients(of, Wanted::OfInput).of_input};
                                },
                            .of_weights =
                                [gradients](const Tensors& of) {
                                  return Tensors{gradients(of, Wanted::OfWeight).of_weight};
                                },
                            .of_both =
                                [gradients](const Tensors& of) {
                                  RmsNorm::Gradients found = gradients(of, Wanted::Both);
                                  return std::pair(Tensors{std::move(found.of_input)},
                                                   Tensors{std::move(found.of_weight)});
                                }})
      .front();
}

Tensors rms_norm_of_sum(const at::Tensor& x, at::Tensor added, const at::Tensor& weight,
                        double epsilon, exchange::Sums sums) {
  RmsNorm norm(x, added, passes::nobody_else_reads(added), weight, epsilon, sums);
  const Tensors outputs = {norm.input().variable_data(), norm.output()};
  norm.forget_output();
  const auto gradients = [norm](const Tensors& of, Wanted wanted) {
    return norm.gradients(of[1], of[0], wanted);
  };
  return with_own_backward(outputs, {x, std::move(added)}, {weight},
                           {.of_inputs =
                                [gradients](const Tensors& of) {
                                  const at::Tensor of_sum = gradients(of, Wanted::OfInput).of_input;
                                  return Tensors{of_sum, of_sum};
                                },
                            .of_weights =
                                [gradients](const Tensors& of) {
                                  return Tensors{gradients(of, Wanted::OfWeight).of_weight};
                                },
                            .of_both =
                                [gradients](const Tensors& of) {
                                  const RmsNorm::Gradients found = gradients(of, Wanted::Both);
                                  return std::pair(Tensors{found.of_input, found.of_input},
                                                   Tensors{found.of_weight});
                                }});
}

}  // namespace penstock::nn
