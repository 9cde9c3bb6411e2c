#include "penstock/runtime/parameters/added_gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock::parameters {
namespace {

using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;

class AskingHook : public FunctionPreHook {
 public:
  explicit AskingHook(std::function<void()> check) : check_(std::move(check)) {}

  variable_list operator()(const variable_list& gradients) override {
    check_();
    return gradients;
  }

 private:
  std::function<void()> check_;
};

}  // namespace

AddedGradients::AddedGradients(const std::vector<stage::NamedParameter>& parameters,
                               std::function<void()> check) {
  for (const stage::NamedParameter& each : parameters) {
    if (!each.tensor.requires_grad()) continue;
    Hooked& hooked = hooked_.emplace_back();
    hooked.node = torch::autograd::impl::grad_accumulator(each.tensor);
    auto hook = std::make_unique<AskingHook>(check);
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

bool AddedGradients::may_come() const {
  const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;
  return std::ranges::any_of(hooked_, [&](const Hooked& each) {
    const auto found = wanted->find(each.node.get());
    return found != wanted->end() && found->second.needed_;
  });
}

}  // namespace penstock::parameters
