// Products whose inputs are cheap to compute again, and are not kept for the backward.
//
// The decoder's blocks use them where model.activation_checkpoint is "selective": products and
// attention are kept, what lies between is computed again.
// Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022).
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {

// x W^T + b.
struct Linear {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined.
};

// Each linear of rms_norm(x, norm_weight, epsilon).  Keeps x, and a number a row.
Tensors linears_of_norm(const at::Tensor& x, const at::Tensor& norm_weight, double epsilon,
                        const std::vector<Linear>& linears);

// The linear of silu(gate) x up.  Keeps these two.
at::Tensor linear_of_gated(const at::Tensor& gate, const at::Tensor& up, const Linear& linear);

}  // namespace penstock::nn
