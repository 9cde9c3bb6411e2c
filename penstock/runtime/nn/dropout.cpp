#include "penstock/runtime/nn/dropout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/draw.h"

namespace penstock::nn {

DropoutImpl::DropoutImpl(double p) : p_(p) {
  if (p >= 0 && p <= 1) return;
  throw ConfigError(penstock::str("the probability of dropout is ", p, "; it must be in [0, 1]"));
}

at::Tensor DropoutImpl::forward(const at::Tensor& input) {
  const std::int64_t size = input.dim() == 0 ? 1 : input.size(-1);
  return forward_part(input, {.count = size}, size);
}

at::Tensor DropoutImpl::forward_part(const at::Tensor& part, const Interval& here,
                                     std::int64_t size) {
  std::vector<std::int64_t> shape = part.sizes().vec();
  if (!shape.empty()) shape.back() = size;
  const at::Tensor factors = this->factors(shape, part.options(), -1, here);
  return factors.defined() ? part * factors : part;
}

at::Tensor DropoutImpl::factors(at::IntArrayRef shape, const at::TensorOptions& options,
                                std::int64_t dimension, const Interval& here) {
  if (!is_training() || p_ == 0) return {};
  const auto of_part = [&](const at::Tensor& whole) {
    const bool is_part = whole.dim() > 0 && here.count < whole.size(dimension);
    return is_part ? whole.narrow(dimension, here.first, here.count).contiguous() : whole;
  };
  if (p_ == 1) return of_part(at::zeros(shape, options));
  // Drawn in host memory, so that every device draws the same.
  const at::Tensor kept = at::empty(shape, at::kFloat).bernoulli_(1 - p_, generator());
  return of_part(kept).to(options).mul_(1 / (1 - p_));
}

}  // namespace penstock::nn
