#include "penstock/runtime/nn/added_gradients.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

#include "penstock/runtime/nn/host_kernels.h"

namespace penstock::nn {
namespace {

thread_local int adds_gradients = 0;  // How many AddsGradients there are.

bool has_hooks(const at::Tensor& weight) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(weight);
  return accumulator && !(accumulator->tensor_pre_hooks().empty() &&
                          accumulator->pre_hooks().empty() && accumulator->post_hooks().empty());
}

class Noting : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Noting(bool& called) : called_(called) {}
  void operator()(const torch::autograd::Variable& /*parameter*/) override { called_ = true; }

 private:
  bool& called_;
};

// Whether the accumulation of an undefined gradient, which comes next, calls what waits for it:
// not in every torch.
bool hook_is_called_for_nothing() {
  static const bool is_called = [] {
    bool called = false;
    const at::Tensor leaf = at::empty({1}, at::kFloat).requires_grad_();
    torch::autograd::impl::post_acc_grad_hooks(leaf) = std::make_unique<Noting>(called);
    (*torch::autograd::impl::grad_accumulator(leaf))(torch::autograd::variable_list(1));
    return called;
  }();
  return is_called;
}

bool are_dense_floats(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         tensor.is_contiguous();
}

}  // namespace

AddsGradients::AddsGradients() { ++adds_gradients; }
AddsGradients::~AddsGradients() { --adds_gradients; }

at::Tensor earlier_gradient(const at::Tensor& weight) {
  if (adds_gradients == 0 || !weight.is_leaf() || has_hooks(weight)) return {};
  const at::Tensor& sum = weight.mutable_grad();
  if (!sum.defined() || !uses_host_kernels(weight) || !are_dense_floats(sum) ||
      weight.scalar_type() != at::kFloat || sum.device() != weight.device()) {
    return {};
  }
  return sum;
}

void tell_of_added(const at::Tensor& weight) {
  const auto& hook = torch::autograd::impl::post_acc_grad_hooks(weight);
  if (hook && !hook_is_called_for_nothing()) (*hook)(weight);
}

}  // namespace penstock::nn
