#include "penstock/runtime/nn/width_norm.h"

#include <ATen/TensorOperators.h>

#include "penstock/runtime/nn/rms_norm.h"

namespace penstock::nn {

WidthNorm::WidthNorm(const Making& making, std::int64_t width, double epsilon,
                     const partition::Along& along)
    : width_(width),
      copies_(along.copies),
      epsilon_(epsilon),
      weight_(register_part("weight", making, {width}, along)) {}

at::Tensor WidthNorm::forward(const at::Tensor& x) const { return rms_norm(x, weight_, epsilon_); }

at::Tensor WidthNorm::squares(const at::Tensor& x) const {
  const at::Tensor own = x.to(at::kFloat).square().sum(-1, /*keepdim=*/true);
  return copies_ == 1 ? own : own / copies_;
}

at::Tensor WidthNorm::forward_part(const at::Tensor& x, const at::Tensor& sum) const {
  const at::Tensor scales = (sum / width_ + epsilon_).rsqrt();
  return weight_ * (x.to(at::kFloat) * scales).to(x.scalar_type());
}

}  // namespace penstock::nn
