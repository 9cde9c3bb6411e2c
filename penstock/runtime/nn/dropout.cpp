#include "penstock/runtime/nn/dropout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/draw.h"

namespace penstock::nn {

DropoutImpl::DropoutImpl(double p) : p_(p) {
  if (p >= 0 && p <= 1) return;
  throw ConfigError(penstock::str("the probability of dropout is ", p, "; it must be in [0, 1]"));
}

at::Tensor DropoutImpl::forward(const at::Tensor& input) {
  if (!is_training() || p_ == 0) return input;
  if (p_ == 1) return input * at::zeros_like(input);
  const at::Tensor kept = at::empty(input.sizes(), at::kFloat).bernoulli_(1 - p_, generator());
  // Drawn in host memory, so that every device draws the same.
  return input * kept.to(input.options()).mul_(1 / (1 - p_));
}

}  // namespace penstock::nn
