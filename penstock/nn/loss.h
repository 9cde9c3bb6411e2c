// The loss of one microbatch, from a function of tensors or of tuples.
//
// Users give one to the Trainer; the last stage calls it.  A function of (output, target), of
// (outputs, target) or of (outputs, targets), where the plural is nn::Values, makes one.
// Shapes: returns a scalar, the mean over the microbatch's samples.
#pragma once
#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

#include "penstock/nn/values.h"

namespace penstock::nn {

// A function object whose parameters are deduced says nothing of them: it is taken for one of
// tensors.
template <class F>
inline constexpr bool kDeducesParameters = std::is_class_v<F> && !requires { &F::operator(); };

template <class F, class Output, class Target>
concept LossOf =
    !kDeducesParameters<std::remove_cvref_t<F>> && std::invocable<F&, const Output&, const Target&>;

class Loss {
 public:
  Loss() = default;
  Loss(std::nullptr_t) {}  // NOLINT: "no loss", as for any function.

  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, Loss>)
  Loss(F function) {  // NOLINT: functions are meant to convert.
    if constexpr (LossOf<F, Values, Values>) {
      function_ = std::move(function);
    } else if constexpr (LossOf<F, Values, at::Tensor>) {
      function_ = [function = std::move(function)](const Values& outputs, const Values& targets) {
        return function(outputs, the_only(targets, "the loss's target"));
      };
    } else {
      function_ = [function = std::move(function)](const Values& outputs, const Values& targets) {
        return function(the_only(outputs, "the loss"), the_only(targets, "the loss's target"));
      };
    }
  }

  // The same, of one that wants outputs of bf16 or fp16 as they are; others get them in float.
  Loss of_any_type() && {
    takes_any_type_ = true;
    return std::move(*this);
  }
  bool takes_any_type() const { return takes_any_type_; }

  explicit operator bool() const { return function_ != nullptr; }
  at::Tensor operator()(const Values& outputs, const Values& targets) const {
    return function_(outputs, targets);
  }

 private:
  std::function<at::Tensor(const Values& outputs, const Values& targets)> function_;
  bool takes_any_type_ = false;
};

}  // namespace penstock::nn
