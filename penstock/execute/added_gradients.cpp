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
  MultiplyingHook(const AddedGradients& owner, std::function<double()> factor)
      : owner_(&owner), factor_(std::move(factor)) {}
  const AddedGradients* owner() const { return owner_; }

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
  const AddedGradients* owner_;
  std::function<double()> factor_;
};

// Drops those hooks of this kind that `is` holds for.
template <class Is>
void drop_hooks(torch::autograd::Node& node, const Is& is) {
  std::erase_if(node.pre_hooks(), [&](const auto& hook) {
    const auto* ours = dynamic_cast<const MultiplyingHook*>(hook.get());
    return ours != nullptr && is(*ours);
  });
}

}  // namespace

AddedGradients::AddedGradients(const std::vector<stage::NamedParameter>& parameters,
                               const std::function<double()>& factor) {
  for (const stage::NamedParameter& each : parameters) {
    if (!each.tensor.requires_grad()) continue;
    auto node = torch::autograd::impl::grad_accumulator(each.tensor);
    drop_hooks(*node, [](const MultiplyingHook&) { return true; });
    node->add_pre_hook(std::make_unique<MultiplyingHook>(*this, factor));
    nodes_.push_back(std::move(node));
  }
}

AddedGradients::~AddedGradients() {
  for (const auto& node : nodes_) {
    drop_hooks(*node, [this](const MultiplyingHook& hook) { return hook.owner() == this; });
  }
}

}  // namespace penstock::execute
