// Dropout whose masks are the same in every layout, and again when a forward pass is repeated.
//
// In place of torch::nn::Dropout, which draws from a generator that the process shares.  The
// numbers are those of draw.h. Shapes: any, in and out.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "penstock/core/box.h"

namespace penstock::nn {

class DropoutImpl : public torch::nn::Cloneable<DropoutImpl> {
 public:
  // `p` is the probability of a zero; the other elements are multiplied by 1 / (1 - p).
  // Throws: ConfigError for p outside [0, 1].
  explicit DropoutImpl(double p = 0.5);
  at::Tensor forward(const at::Tensor& input);
  // The same of a part of an input along its last dimension, of which the whole has `size`: it has
  // the zeros that it has in the whole.
  at::Tensor forward_part(const at::Tensor& part, const Interval& here, std::int64_t size);
  // What forward() multiplies an input of that shape by, or a part of it along a dimension;
  // undefined: by nothing.
  at::Tensor factors(at::IntArrayRef shape, const at::TensorOptions& options,
                     std::int64_t dimension, const Interval& here);
  void reset() override {}

 private:
  double p_;
};
TORCH_MODULE(Dropout);

}  // namespace penstock::nn
