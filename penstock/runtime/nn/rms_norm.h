// The root-mean-square norm, with a backward that keeps its input and a number a row.
//
// The decoder's norm.  Computes in float whatever the type, as transformers does; on CUDA devices
// by torch's kernels for it, which round once where the others round twice; on processors in one
// pass over the rows (passes/), with what is added before it.
// Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "penstock/plan/exchange/pieces.h"
#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {

// x / sqrt(mean(x^2) + epsilon) x weight, over the last dimension.
// Shapes: x [..., width], weight [width].
// `sums`: of the weight's gradient, over all rows (block_sums.h).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    exchange::Sums sums = exchange::Sums::AsTheyCome);

// x + added, and the norm of that.  The sum takes the memory of `added` where nobody else reads it.
Tensors rms_norm_of_sum(const at::Tensor& x, at::Tensor added, const at::Tensor& weight,
                        double epsilon, exchange::Sums sums = exchange::Sums::AsTheyCome);

// A norm whose output is there, and can be computed again.  Without autograd: its tensors are
// detached, and what it does is under NoGradGuard.
class RmsNorm {
 public:
  RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon, exchange::Sums sums);
  // Norms x + added.  `reuses`: the sum may take the memory of `added`.
  RmsNorm(const at::Tensor& x, const at::Tensor& added, bool reuses, const at::Tensor& weight,
          double epsilon, exchange::Sums sums);

  // What is normed.
  const at::Tensor& input() const { return x_; }
  const at::Tensor& output() const { return output_; }
  void forget_output() { output_.reset(); }
  // The same bits as output().
  at::Tensor output_again() const;

  enum class Wanted : std::uint8_t { OfInput, OfWeight, Both };
  struct Gradients {  // Undefined, where it is not wanted.
    at::Tensor of_input;
    at::Tensor of_weight;
  };
  // Maps the output's gradient to these.  `of_sum`, where it is defined, is added to that of the
  // input, in its memory where nobody else reads it.
  Gradients gradients(const at::Tensor& gradient, const at::Tensor& of_sum, Wanted wanted) const;

 private:
  void compute();
  at::Tensor values() const;  // The normed x before the weight, of float.
  at::Tensor like_weight() const;
  at::Tensor sum_over_rows(const at::Tensor& of_rows) const;
  at::Tensor gradient_of_input(const at::Tensor& gradient) const;
  at::Tensor gradient_of_weight(const at::Tensor& gradient) const;
  Gradients in_one_pass(const at::Tensor& gradient, const at::Tensor& of_sum, Wanted wanted) const;

  enum class Kernel : std::uint8_t { Operators, Pass, Cuda };

  at::Tensor x_;
  at::Tensor weight_;
  double epsilon_;
  exchange::Sums sums_;
  Kernel kernel_;
  at::Tensor scales_;  // [..., 1], float: one over the root.
  at::Tensor output_;
};

}  // namespace penstock::nn
