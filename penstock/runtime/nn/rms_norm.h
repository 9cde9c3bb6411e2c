// The root-mean-square norm, with a backward that keeps its input and a number a row.
//
// The decoder's norm.  Computes in float whatever the type, as transformers does.
// Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
#pragma once
#include <ATen/core/Tensor.h>

namespace penstock::nn {

// x / sqrt(mean(x^2) + epsilon) x weight, over the last dimension.
// Shapes: x [..., width], weight [width].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

}  // namespace penstock::nn
