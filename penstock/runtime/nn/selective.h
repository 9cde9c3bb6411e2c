// Products whose inputs are cheap to compute again, and are not kept for the backward.
//
// The decoder's blocks use them where model.activation_checkpoint is "selective": products and
// attention are kept, what lies between is computed again.
// Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/runtime/nn/block_sums.h"
#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {

// Each linear of rms_norm(x, norm_weight, epsilon).  Keeps x, and a number a row.  `blocks`, here
// and below: in which sums over what ranks share are added (block_sums.h); absent: nobody asks.
Tensors linears_of_norm(const at::Tensor& x, const at::Tensor& norm_weight, double epsilon,
                        const std::vector<Linear>& linears, std::optional<std::int64_t> blocks);

// x + added, and each linear of the norm of that.
Tensors linears_of_norm_of_sum(const at::Tensor& x, at::Tensor added, const at::Tensor& norm_weight,
                               double epsilon, const std::vector<Linear>& linears,
                               std::optional<std::int64_t> blocks);

// The linear of silu(gate) x up.  Keeps these two.
// REQUIRES: no bias, where there are blocks.
at::Tensor linear_of_gated(const at::Tensor& gate, const at::Tensor& up, const Linear& linear,
                           std::optional<std::int64_t> blocks);

}  // namespace penstock::nn
