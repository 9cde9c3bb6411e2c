// The root-mean-square norm, with a backward that keeps its input and a number a row.
//
// The decoder's norm.  Computes in float whatever the type, as transformers does; on CUDA devices
// by torch's kernels for it, which round once where the others round twice.
// Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
#pragma once
#include <ATen/core/Tensor.h>

#include "penstock/plan/exchange/pieces.h"

namespace penstock::nn {

// x / sqrt(mean(x^2) + epsilon) x weight, over the last dimension.
// Shapes: x [..., width], weight [width].
// `sums`: of the weight's gradient, over all rows (block_sums.h).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    exchange::Sums sums = exchange::Sums::AsTheyCome);

// A norm whose output is there, and can be computed again.  Without autograd: both tensors are
// detached, and what it does is under NoGradGuard.
class RmsNorm {
 public:
  RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, exchange::Sums sums);

  const at::Tensor& output() const { return output_; }
  void forget_output() { output_.reset(); }
  // The same bits as output().
  at::Tensor output_again() const;
  at::Tensor gradient_of_input(const at::Tensor& gradient) const;
  at::Tensor gradient_of_weight(const at::Tensor& gradient) const;

 private:
  at::Tensor values() const;  // The normed x before the weight, of float.

  at::Tensor x_;
  at::Tensor weight_;
  double epsilon_;
  exchange::Sums sums_;
  bool is_fused_;
  at::Tensor scales_;  // [..., 1], float: one over the root.
  at::Tensor output_;
};

}  // namespace penstock::nn
