// The type in which the gradients of a parameter are added up.
//
// One rule for microbatches, replicas and layers that share a parameter.
#pragma once
#include <c10/core/ScalarType.h>

#include <optional>

namespace penstock::parameters {

// A summand that adds nothing to any number, not even to the sign of a zero.
inline constexpr double kNothing = -0.0;

// The type for a parameter of type `own`: `asked`, if there is one and `own` is short (bf16, fp16).
inline at::ScalarType sum_type(at::ScalarType own, std::optional<at::ScalarType> asked) {
  return c10::isReducedFloatingType(own) ? asked.value_or(own) : own;
}

}  // namespace penstock::parameters
