#include "penstock/execute/form.h"

#include <algorithm>

#include "penstock/core/text.h"

namespace penstock::execute {
namespace {

constexpr std::int64_t kAlignment = 64;  // Of tensors in a message: a cache line.

std::string to_string(const TensorForm& form, bool say_no_gradient) {
  if (form.dtype == at::ScalarType::Undefined) return "nothing";
  return penstock::str(at::toString(form.dtype), at::IntArrayRef(form.sizes),
                       say_no_gradient && !form.requires_grad ? " without gradient" : "");
}

bool has_form(const at::Tensor& tensor, const TensorForm& form) {
  if (!tensor.defined()) return form.dtype == at::ScalarType::Undefined;
  return tensor.scalar_type() == form.dtype && tensor.requires_grad() == form.requires_grad &&
         tensor.sizes() == at::IntArrayRef(form.sizes);
}

}  // namespace

std::int64_t TensorForm::numel() const {
  if (dtype == at::ScalarType::Undefined) return 0;
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) product *= size;
  return product;
}

std::int64_t TensorForm::bytes() const {
  const std::int64_t count = numel();
  return count == 0 ? 0 : count * static_cast<std::int64_t>(c10::elementSize(dtype));
}

Form form_of(const nn::Values& values) {
  Form form(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    form[i] = {.dtype = values[i].scalar_type(),
               .requires_grad = values[i].requires_grad(),
               .sizes = values[i].sizes().vec()};
  }
  return form;
}

bool has_form(const nn::Values& values, const Form& form) {
  if (values.size() != form.size()) return false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!has_form(values[i], form[i])) return false;
  }
  return true;
}

std::string to_string(const Form& form) {
  if (form.size() == 1) return to_string(form.front(), /*say_no_gradient=*/false);
  std::vector<std::string> tensors;
  for (const TensorForm& tensor : form) tensors.push_back(to_string(tensor, true));
  return penstock::str("(", join(tensors, ", "), ")");
}

std::vector<std::int64_t> encode(const Form& form) {
  std::vector<std::int64_t> words = {std::ssize(form)};
  for (const TensorForm& tensor : form) {
    words.push_back(static_cast<std::int64_t>(tensor.dtype));
    words.push_back(tensor.requires_grad ? 1 : 0);
    words.push_back(std::ssize(tensor.sizes));
    words.insert(words.end(), tensor.sizes.begin(), tensor.sizes.end());
  }
  return words;
}

Form decode(const std::int64_t* words) {
  Form form(static_cast<std::size_t>(*words++));
  for (TensorForm& tensor : form) {
    tensor.dtype = static_cast<at::ScalarType>(*words++);
    tensor.requires_grad = *words++ != 0;
    const std::int64_t dimensions = *words++;
    tensor.sizes.assign(words, words + dimensions);
    words += dimensions;
  }
  return form;
}

Packing pack(const Form& form, Packing::Of of) {
  Packing packing;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const std::int64_t bytes = form[i].bytes();
    if (bytes == 0 || (of == Packing::Of::Gradients && !form[i].requires_grad)) continue;
    packing.bytes = (packing.bytes + kAlignment - 1) / kAlignment * kAlignment;
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
