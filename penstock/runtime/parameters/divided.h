// What gradients are divided by, where they are summed.
//
// Whatever sums gradients over microbatches and replicas divides there, so that no backward has to:
// one that did would show its share of a mean to all that looks at gradients within it.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/scalar_tensor.h>

#include <cstdint>

namespace penstock::parameters {

class Divisor {
 public:
  Divisor() = default;  // 1.
  explicit Divisor(double value) : value_(value) {
    if (value != 1.0) tensor_ = at::scalar_tensor(value);
  }

  // Divides in place, which by 1 is nothing.
  void divide(at::Tensor& gradient) const {
    if (value_ != 1.0) gradient.div_(value_);
  }

  // Leaves the quotient in `place`, in one pass where both are dense and on the CPU.
  // REQUIRES: one shape and type.
  void put(at::Tensor place, const at::Tensor& gradient) const {
    if (value_ == 1.0 || gradient.layout() != at::kStrided || !gradient.is_cpu()) {
      place.copy_(gradient);
      divide(place);
    } else if (!put_few(place, gradient)) {
      at::div_out(place, gradient, tensor_);
    }
  }

 private:
  static constexpr std::int64_t kFew =
      4096;  // Elements, which take less than an operator to begin.

  // The same bits as the operator's, or false where it has to do it.
  bool put_few(at::Tensor& place, const at::Tensor& gradient) const {
    if (gradient.numel() > kFew || gradient.scalar_type() != at::kFloat ||
        !gradient.is_contiguous() || !place.is_contiguous()) {
      return false;
    }
    const float* from = gradient.const_data_ptr<float>();
    float* to = place.mutable_data_ptr<float>();
    const auto divisor = static_cast<float>(value_);
    for (std::int64_t i = 0; i < gradient.numel(); ++i) to[i] = from[i] / divisor;
    place.unsafeGetTensorImpl()->bump_version();
    return true;
  }

  double value_ = 1.0;
  at::Tensor tensor_;  // The value, made once for all gradients of a step.
};

}  // namespace penstock::parameters
