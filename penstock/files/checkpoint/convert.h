// Values in F32, F16 or BF16 as values in another of these types.
//
// Exported weights go through it.  F16 and BF16 become F32 exactly; all else is rounded to the
// nearest value, and to the even one of two that are as near.  A NaN stays a NaN.
// Knows neither tensors nor files.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/files/checkpoint/safetensors_header.h"

namespace penstock::checkpoint {

// Whether convert() knows the type.
bool is_convertible(ScalarType type);

// Sets `to` to the values of `from`, which are of type `is`, as values of type `wanted`.
// REQUIRES: is_convertible() of both; whole values.
// Returns: the number of the first value that is finite and has no finite neighbour in `wanted`;
// `to` has an infinity there.
std::optional<std::size_t> convert(std::string_view from, ScalarType is, ScalarType wanted,
                                   std::string& to);

}  // namespace penstock::checkpoint
