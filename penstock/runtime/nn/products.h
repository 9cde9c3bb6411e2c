// Linears of one input, and what their backward adds.
//
// Decoders compute their projections and their head with it.  Linears of one input are computed
// together: it is kept once, and their gradients of it are added in their order, in one tensor.
// A weight's gradient is added onto what earlier microbatches left, where that may be
// (added_gradients.h).
// Floats of the host go through host_products.h.  Devices and other types have torch's operators
// and autograd.
// Shapes: rows are what comes before the last dimension.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "penstock/runtime/nn/block_sums.h"
#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {

// Each linear of x.
Tensors linears_of(const at::Tensor& x, const std::vector<Linear>& linears);
at::Tensor linear_of(const at::Tensor& x, const Linear& linear);

// A copy that autograd does not see.
Linear detached(const Linear& linear);

// The parts of it, without autograd, for who keeps another input.
at::Tensor output_of(const at::Tensor& x, const Linear& linear);
// The sum over all linears, in their order.  Undefined gradients add nothing; without any, it is
// undefined.
at::Tensor gradient_of_input(const std::vector<Linear>& linears, const Tensors& gradients);
// Appends those of weight, and bias where there is one: undefined where they are added already, not
// wanted, or nothing depends on the output.  REQUIRES: `linear` has the parameters themselves.
void append_gradients(Tensors& gradients, const Linear& linear, const at::Tensor& input,
                      const at::Tensor& gradient);

// The parameters that autograd is told of.
void append_parameters(Tensors& parameters, const Linear& linear);

}  // namespace penstock::nn
