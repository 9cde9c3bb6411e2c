// Equality of tensors to the bit, for every test that compares two ways to the same numbers.
//
// Two undefined tensors are equal; a sparse one is no dense one's equal.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstring>

namespace penstock::testing_support {

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (a.is_sparse() != b.is_sparse()) return false;
  if (a.is_sparse()) return same_bits(a.to_dense(), b.to_dense());
  if (a.numel() == 0) return true;
  return std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(),
                     a.nbytes()) == 0;
}

}  // namespace penstock::testing_support
