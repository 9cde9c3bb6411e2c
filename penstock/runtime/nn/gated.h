// silu(gate) x up: what SwiGLU is between its projections.
//
// The decoder's feed-forward part.  On processors one pass computes it, and one its gradients
// (passes/); the backward keeps the two, where torch's operators keep silu(gate) as well.
// Source: Shazeer, GLU Variants Improve Transformer (2020).
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

namespace penstock::nn {

// Is seen by autograd.
at::Tensor gated(const at::Tensor& gate, const at::Tensor& up);

// The two without autograd.  Gradients are of gate and of up; that of up takes the memory of
// `gradient` where nobody else reads it.
at::Tensor gated_values(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> gradients_of_gated(const at::Tensor& gradient,
                                                     const at::Tensor& gate, const at::Tensor& up);

}  // namespace penstock::nn
