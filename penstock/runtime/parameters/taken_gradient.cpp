#include "penstock/runtime/parameters/taken_gradient.h"

#include <utility>

namespace penstock::parameters {

at::Tensor take_gradient(const at::Tensor& parameter) {
  at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  if (gradient.defined() && gradient.layout() != at::kStrided) return gradient.to_dense();
  return gradient;
}

}  // namespace penstock::parameters
