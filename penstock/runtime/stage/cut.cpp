#include "penstock/runtime/stage/cut.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

namespace penstock::stage {

Cut cut_off(const nn::Values& inputs) {
  Cut cut{.leaves = nn::Values(inputs.size()), .values = without_gradient(inputs)};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    cut.leaves[i] = inputs[i].detach().requires_grad_(true);
    torch::autograd::impl::set_gradient_edge(cut.values[i],
                                             torch::autograd::impl::gradient_edge(cut.leaves[i]));
  }
  return cut;
}

void empty(nn::Values& leaves) {
  for (at::Tensor& leaf : leaves) {
    if (!leaf.defined()) continue;
    leaf.set_data(at::empty({1}, leaf.options().requires_grad(false)).expand(leaf.sizes()));
  }
}

nn::Values detached(const nn::Values& values) {
  nn::Values results = without_gradient(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].defined() && values[i].requires_grad()) results[i].requires_grad_(true);
  }
  return results;
}

nn::Values without_gradient(const nn::Values& values) {
  nn::Values results(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].defined()) results[i] = values[i].detach();
  }
  return results;
}

}  // namespace penstock::stage
