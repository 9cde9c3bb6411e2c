// Sums of squares without rounding: the same for every cut of the elements into any parts.
//
// The gradient norm is made of them where sums are invariant: ranks that share a layer have other
// elements side by side than one rank has.  A square of two floats has 48 bits; its digits of base
// 2^16 are added to counters, one for each place value.  Counters of several ranks may be added, in
// any order; the sum of all, one after the other, is rounded.
// Units: each is a multiple of the unit of its place, exact for 2^37 elements.
// Source: Kulisch, Computer Arithmetic and Validity (2013), in the small.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>

namespace penstock::parameters {

inline constexpr std::size_t kSquareDigits = 38;
// The first ones count least.
using ExactSquares = std::array<double, kSquareDigits>;

// Whether squares of its elements can be added: of real numbers up to float, on the host.
bool has_exact_squares(const at::Tensor& tensor);

// Adds the squares of all elements.  One that is not finite makes the sum so.
// REQUIRES: has_exact_squares(tensor).
void add_squares(ExactSquares& sum, const at::Tensor& tensor);

}  // namespace penstock::parameters
