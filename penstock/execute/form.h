// What a receiver must know of a tuple before its bytes come, and how the tuple lies in a message.
//
// mailbox.h announces forms and packs by them; form_numbers.h compares those of a step's inputs.
// Knows no ranks.
// Invariant: decode(encode(form)) == form.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/nn/values.h"

namespace penstock::execute {

struct TensorForm {
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: an empty place.
  bool requires_grad = false;
  std::vector<std::int64_t> sizes;

  std::int64_t numel() const;
  std::int64_t bytes() const;
  friend bool operator==(const TensorForm&, const TensorForm&) = default;
};

using Form = std::vector<TensorForm>;

Form form_of(const nn::Values& values);
bool has_form(const nn::Values& values, const Form& form);
// "Float[4, 8]"; of a tuple "(Float[4, 8], Long[4] without gradient)".
std::string to_string(const Form& form);

std::vector<std::int64_t> encode(const Form& form);
Form decode(const std::int64_t* words);

// A tuple as one message: a tensor alone as it is, several one after the other in bytes.
struct Packing {
  // Where the tensors of `form` lie that travel: all, or those that take a gradient.
  enum class Of : std::uint8_t { Values, Gradients };
  struct Part {
    std::size_t place = 0;  // In the tuple.
    std::int64_t offset = 0;
  };
  std::vector<Part> parts;
  // Of gradients that travel together: a byte for each part, 0 where autograd gave none.
  std::int64_t flags = 0;  // Their offset.
  std::int64_t bytes = 0;  // Of the message; 0: none is sent.

  bool alone() const { return parts.size() == 1; }
};

Packing pack(const Form& form, Packing::Of of);

}  // namespace penstock::execute
