// Sizes and places that are multiples of something.
//
// Of elements or of bytes: knows neither.
#pragma once
#include <concepts>

namespace penstock {

// The least multiple of `unit` that is no less than `value`.  REQUIRES: value >= 0; unit >= 1.
template <std::integral Integer>
constexpr Integer round_up(Integer value, Integer unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace penstock
