#include "penstock/execute/added_gradients.h"

#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace penstock::execute {
namespace {

using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;

class MultiplyingHook : public FunctionPreHook {
 public:
  explicit MultiplyingHook(std::function<double()> factor) : factor_(std::move(factor)) {}

  variable_list operator()(const variable_list& gradients) override {
    variable_list result = gradients;
    const double factor = factor_();
    if (factor == 1.0) return result;
    for (at::Tensor& gradient : result) {
      if (gradient.defined()) gradient = at::mul(gradient, factor);
    }
    return result;
  }

 private:
  std::function<double()> factor_;
};

}  // namespace

AddedGradients::AddedGradients(const std::vector<stage::NamedParameter>& parameters,
                               std::function<double()> factor) {
  for (const stage::NamedParameter& each : parameters) {
    if (!each.tensor.requires_grad()) continue;
    Hooked& hooked = hooked_.emplace_back();
    hooked.node = torch::autograd::impl::grad_accumulator(each.tensor);
    auto hook = std::make_unique<MultiplyingHook>(factor);
    hooked.hook = hook.get();
    hooked.node->add_pre_hook(std::move(hook));
  }
}

AddedGradients::~AddedGradients() {
  for (const Hooked& each : hooked_) {
    std::erase_if(each.node->pre_hooks(),
                  [&](const auto& hook) { return hook.get() == each.hook; });
  }
}

}  // namespace penstock::execute
