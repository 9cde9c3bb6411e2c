// The gradient that a backward has left in a parameter, taken from it.
//
// Whoever sums gradients takes them here.  Those of embeddings with sparse=True become dense: all
// that follows, sums over ranks, norms and optimizers, works on whole tensors or slices of them.
#pragma once
#include <ATen/core/Tensor.h>

namespace penstock::parameters {

// Undefined where there is none.  The parameter has none afterwards.
at::Tensor take_gradient(const at::Tensor& parameter);

}  // namespace penstock::parameters
