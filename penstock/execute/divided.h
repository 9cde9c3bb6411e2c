// Gradients divided by a number, where they are summed.
//
// Whatever sums gradients over microbatches and replicas does it here, so that no backward has to:
// one that did would show its share of a mean to all that looks at gradients within it.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/scalar_tensor.h>

namespace penstock::execute {

// Divides in place, which by 1 is nothing.
inline void divide(at::Tensor& gradient, double divisor) {
  if (divisor != 1.0) gradient.div_(divisor);
}

// Leaves the quotient in `place`, in one pass where both are dense and on the CPU.
// REQUIRES: one shape and type.
inline void put_divided(at::Tensor place, const at::Tensor& gradient, double divisor) {
  if (divisor != 1.0 && gradient.layout() == at::kStrided && gradient.is_cpu()) {
    at::div_out(place, gradient, at::scalar_tensor(divisor));
  } else {
    place.copy_(gradient);
    divide(place, divisor);
  }
}

}  // namespace penstock::execute
