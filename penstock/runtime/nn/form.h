// The form of a tuple of tensors: what of it can be known without its bytes.
//
// Messages announce it (execute/packing.h), and a probe makes tensors by it.  Knows no devices.
#pragma once
#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/runtime/nn/values.h"

namespace penstock::nn {

struct TensorForm {
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: an empty place.
  bool requires_grad = false;
  std::vector<std::int64_t> sizes;

  std::int64_t numel() const;
  std::int64_t bytes() const;
  friend auto operator<=>(const TensorForm&, const TensorForm&) = default;
};

using Form = std::vector<TensorForm>;

Form form_of(const Values& values);
bool has_form(const Values& values, const Form& form);
// "Float[4, 8]"; of a tuple "(Float[4, 8], Long[4] without gradient)".
std::string to_string(const Form& form);

}  // namespace penstock::nn
