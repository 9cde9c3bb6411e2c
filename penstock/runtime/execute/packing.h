// What a receiver is told of a tuple before its bytes come, and how the tuple lies in a message.
//
// mailbox.h announces forms and packs by them.  Knows no ranks.
// Invariant: decode(encode(form)) == form.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/runtime/nn/form.h"

namespace penstock::execute {

std::vector<std::int64_t> encode(const nn::Form& form);
nn::Form decode(const std::int64_t* words);

// A tuple as one message: a tensor alone as it is, several one after the other in bytes.
struct Packing {
  // Selects the tensors that travel: all, or those that take a gradient.
  enum class Of : std::uint8_t { Values, Gradients };
  struct Part {
    std::size_t place = 0;  // Index in the tuple.
    std::int64_t offset = 0;
  };
  std::vector<Part> parts;
  // Offset of the flags, one byte a part, of gradients that travel together; 0 in a byte: autograd
  // gave none.
  std::int64_t flags = 0;  // Their offset.
  std::int64_t bytes = 0;  // Size of the message; 0: none is sent.

  bool alone() const { return parts.size() == 1; }
};

Packing pack(const nn::Form& form, Packing::Of of);

}  // namespace penstock::execute
