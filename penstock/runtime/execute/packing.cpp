#include "penstock/runtime/execute/packing.h"

#include <algorithm>

#include "penstock/core/round_up.h"

namespace penstock::execute {
namespace {

constexpr std::int64_t kAlignment = 64;  // Alignment of tensors in a message: a cache line.

}  // namespace

std::vector<std::int64_t> encode(const nn::Form& form) {
  std::vector<std::int64_t> words = {std::ssize(form)};
  for (const nn::TensorForm& tensor : form) {
    words.push_back(static_cast<std::int64_t>(tensor.dtype));
    words.push_back(tensor.requires_grad ? 1 : 0);
    words.push_back(std::ssize(tensor.sizes));
    words.insert(words.end(), tensor.sizes.begin(), tensor.sizes.end());
  }
  return words;
}

nn::Form decode(const std::int64_t* words) {
  nn::Form form(static_cast<std::size_t>(*words++));
  for (nn::TensorForm& tensor : form) {
    tensor.dtype = static_cast<at::ScalarType>(*words++);
    tensor.requires_grad = *words++ != 0;
    const std::int64_t dimensions = *words++;
    tensor.sizes.assign(words, words + dimensions);
    words += dimensions;
  }
  return form;
}

Packing pack(const nn::Form& form, Packing::Of of) {
  Packing packing;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const std::int64_t bytes = form[i].bytes();
    if (bytes == 0 || (of == Packing::Of::Gradients && !form[i].requires_grad)) continue;
    packing.bytes = round_up(packing.bytes, kAlignment);
    packing.parts.push_back({.place = i, .offset = packing.bytes});
    packing.bytes += bytes;
  }
  packing.flags = packing.bytes;
  if (of == Packing::Of::Gradients && packing.parts.size() > 1) {
    packing.bytes += std::ssize(packing.parts);
  }
  return packing;
}

}  // namespace penstock::execute
