#include "penstock/runtime/nn/form.h"

#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

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

Form form_of(const Values& values) {
  Form form(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    form[i] = {.dtype = values[i].scalar_type(),
               .requires_grad = values[i].requires_grad(),
               .sizes = values[i].sizes().vec()};
  }
  return form;
}

bool has_form(const Values& values, const Form& form) {
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

}  // namespace penstock::nn
