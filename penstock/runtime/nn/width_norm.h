// The RMS norm of all heads' queries, or keys, together, which ranks may share by heads.
//
// The decoder's, as in OLMo 2.  A rank that has some heads needs the squares of all: it gives its
// own sum of them, and norms its part with the sum of all ranks'.
// Shapes: x is [..., width here], sums of squares are [..., 1] of float.
// Source: OLMo Team, 2 OLMo 2 Furious (2024).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "penstock/plan/partition/cut.h"
#include "penstock/runtime/nn/making.h"

namespace penstock::nn {

class WidthNorm : public CutModule {
 public:
  // `along`: how ranks share the width.
  WidthNorm(const Making& making, std::int64_t width, double epsilon,
            const partition::Along& along);

  // The normed x of all heads, which are here.
  at::Tensor forward(const at::Tensor& x) const;
  // The summand of all squares, from x of this rank's heads.
  at::Tensor squares(const at::Tensor& x) const;
  // This rank's part of the normed x, from the sum of all ranks' squares().
  at::Tensor forward_part(const at::Tensor& x, const at::Tensor& sum) const;

 private:
  std::int64_t width_;   // Width of all ranks.
  std::int64_t copies_;  // Ranks that have the same heads.
  double epsilon_;
  at::Tensor weight_;
};

}  // namespace penstock::nn
