#include "penstock/runtime/nn/dropout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

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
  if (!is_training() || p_ == 0) return part;
  if (p_ == 1) return part * at::zeros_like(part);
  std::vector<std::int64_t> sizes = part.sizes().vec();
  if (!sizes.empty()) sizes.back() = size;
  // Drawn in host memory, so that every device draws the same.
  at::Tensor kept = at::empty(sizes, at::kFloat).bernoulli_(1 - p_, generator());
  if (here.count < size) kept = kept.narrow(-1, here.first, here.count);
  return part * kept.to(part.options()).mul_(1 / (1 - p_));
}

}  // namespace penstock::nn
