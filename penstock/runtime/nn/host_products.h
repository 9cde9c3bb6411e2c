// Products of matrices of floats in the host's memory, by oneDNN or by torch's own library.
//
// The only place that chooses, by the processor, torch's settings and the sizes alone: ranks on
// equal machines choose alike, at every step.  Torch gives floats to MKL.  On processors with AVX2
// or AVX512 oneDNN is 5 to 15 % faster, in products that are worth its call.
// Tensors without memory are multiplied by at::mm(), and added to where the host would add.
// Knows no layers and no autograd.
// Shapes: left [rows, inner], right [inner, columns], in any order of memory.
#pragma once
#include <ATen/core/Tensor.h>

namespace penstock::nn {

// Whether oneDNN multiplies these: no other function here has to be asked first.
bool has_faster_product(const at::Tensor& left, const at::Tensor& right);

at::Tensor product(const at::Tensor& left, const at::Tensor& right);

// Whether add_product() needs no memory for the product.  It rounds as if it did: the product is
// whole before it is added.
bool adds_in_place(const at::Tensor& left, const at::Tensor& right);
// sum += left x right.  The bits are those of the product, and then an addition.
void add_product(at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

// Whether sum.addmm_(left, right) has the bits of at::mm() and an addition, in products that are
// worth asking: torch's library goes through `inner` in one piece, up to a length of its own.
bool torch_adds_whole(const at::Tensor& left, const at::Tensor& right);

}  // namespace penstock::nn
