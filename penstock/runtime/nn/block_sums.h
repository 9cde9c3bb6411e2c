// Sums over what ranks share, in blocks and a tree above them that no number of ranks changes.
//
// Layers use it where Making::blocks says so.  What all ranks have is halved as long as it is even,
// up to three times; the halves' sums are added.  A rank of 2, 4 or 8 begins that tree further
// down, and the exchange goes on with it.  Every block is computed by the same kernel on the same
// sizes, from memory that begins alike.
// Products whose outputs are cut, and not their inner dimension, have the same bits for any cut
// into widths that are multiples of 16: kernels compute so many outputs at a time.
// Shapes: rows are what comes before the last dimension.
// Source: TBIK (2511.17826) has such trees for inference; here for backwards, too.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/runtime/nn/making.h"
#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {

// x W^T + b.
struct Linear {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined.
};

// The widths that are cut, in indices that a rank has at least.
inline constexpr std::int64_t kWidthOfBits = 16;

// Whether so many ranks can share `size`, in units, so that each has as much and a multiple of it.
bool can_share_width(std::int64_t ranks, std::int64_t size, std::int64_t unit = 1);
// Throws: ConfigError where ranks of `making` cannot share `size` of `what`, in units, so that
// every rank has as much and a multiple of kWidthOfBits, with the sizes that work.
void check_width(const Making& making, const std::string& what, std::int64_t size,
                 std::int64_t unit = 1);

// The sum over the last dimension, in blocks of it.
at::Tensor sum_in_blocks(const at::Tensor& x, std::int64_t blocks);
// The sum over all but the last dimension: over the last but one as a tree of halves, as long as it
// is even.  So any cut of that one into 2, 4 or 8 equal parts has subtrees of it.
at::Tensor sum_of_rows(const at::Tensor& x);

// The gradient of x, of linears of x whose outputs ranks share: from those of their outputs, in
// blocks of these.  Undefined gradients add nothing; one is there.  Without autograd.
at::Tensor gradient_of_shared(const std::vector<Linear>& linears, const Tensors& gradients,
                              std::int64_t blocks);
// x W^T, of inputs that ranks share: in blocks of these.  Without autograd.
at::Tensor product_in_blocks(const at::Tensor& x, const at::Tensor& weight, std::int64_t blocks);
// The gradient of that x.  Without autograd.
at::Tensor gradient_of_summand(const Linear& linear, const at::Tensor& gradient);
// x W^T + b, the product apart: of outputs that ranks share.  Without autograd.
at::Tensor product_and_bias(const at::Tensor& x, const Linear& linear);
// Appends the gradients of a weight, and of a bias where there is one.  Without autograd.
void add_gradients_of(Tensors& gradients, const Linear& linear, const at::Tensor& input,
                      const at::Tensor& gradient);

// The three for autograd: each linear of x, whose outputs ranks share; x W^T, whose inputs they
// share; x + b, whose last but one dimension they may share.
Tensors linears_in_blocks(const at::Tensor& x, const std::vector<Linear>& linears,
                          std::int64_t blocks);
at::Tensor summand_in_blocks(const at::Tensor& x, const at::Tensor& weight, std::int64_t blocks);
at::Tensor add_bias_in_blocks(const at::Tensor& x, const at::Tensor& bias);

}  // namespace penstock::nn
