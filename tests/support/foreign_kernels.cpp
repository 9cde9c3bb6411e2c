#include "tests/support/foreign_kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/foreign_device.h"
#include "tests/support/foreign_memory.h"

namespace penstock::testing_support::foreign {
namespace {

bool is_foreign(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kForeign;
}

at::Tensor opened_memory(const at::Tensor& tensor) {
  return at::from_blob(opened(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

// The value with each tensor of the device replaced, and that device by the host.
template <class Replaced>
c10::IValue with(const c10::IValue& value, const Replaced& replaced) {
  if (value.isTensor()) return replaced(value.toTensor());
  if (value.isDevice() && value.toDevice().type() == kForeign) return c10::Device(at::kCPU);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(replaced(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& each : value.toOptionalTensorVector()) {
      list.push_back(each ? std::optional(replaced(*each)) : std::nullopt);
    }
    return list;
  }
  return value;
}

template <class Replaced>
torch::jit::Stack arguments_with(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                 const Replaced& replaced) {
  torch::jit::Stack arguments;
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    arguments.push_back(with(stack[i], replaced));
  }
  return arguments;
}

// Zeros in the place of what the device has.
class Zeros {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    if (!is_foreign(tensor)) return tensor;
    for (const auto& [original, zero] : zeros_) {
      if (original.is_same(tensor)) return zero;
    }
    const at::Tensor zero = at::empty_strided(
        tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).requires_grad(false));
    zero.zero_();
    zeros_.emplace_back(tensor, zero);
    return zero;
  }

  // What a result of a call on zeros stands for, if it is no new tensor.
  std::optional<at::Tensor> argument(const at::Tensor& result) const {
    if (!result.defined()) return result;
    for (const auto& [original, zero] : zeros_) {
      if (zero.is_same(result)) return original;
      TORCH_CHECK(zero.numel() == 0 || !zero.is_alias_of(result), "a view of an argument");
    }
    return std::nullopt;
  }

  // Arguments that the operator has given other sizes have them, and memory for them.
  void take_sizes() const {
    for (const auto& [original, zero] : zeros_) {
      if (original.sizes() != zero.sizes()) original.resize_(zero.sizes());
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> zeros_;
};

void collect(const c10::IValue& value, std::vector<at::Tensor>& into) {
  if (value.isTensor()) into.push_back(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) into.push_back(each);
  }
}

}  // namespace

int device_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::optional<int> found;
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (stack[i].isDevice() && stack[i].toDevice().type() == kForeign &&
        stack[i].toDevice().has_index()) {
      found = found.value_or(stack[i].toDevice().index());
    }
    with(stack[i], [&](const at::Tensor& each) {
      if (is_foreign(each) && !found) found = each.device().index();
      return each;
    });
  }
  return found.value_or(current_device());
}

bool can_be_late(const c10::OperatorHandle& op) {
  const bool needs_values = op.hasTag(at::Tag::nondeterministic_seeded) ||
                            op.hasTag(at::Tag::data_dependent_output) ||
                            op.hasTag(at::Tag::dynamic_output_shape);
  return !needs_values && std::ranges::all_of(op.schema().returns(), [](const auto& each) {
    return each.type()->isSubtypeOf(*c10::TensorType::get()) ||
           each.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

void call_late(const c10::OperatorHandle& op, torch::jit::Stack& stack, Stream& stream) {
  const at::NoGradGuard no_grad;
  Zeros zeros;
  torch::jit::Stack results =
      arguments_with(op, stack, [&](const at::Tensor& each) { return zeros.of(each); });
  op.callBoxed(results);
  zeros.take_sizes();
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // Host memory, and where it goes.
  torch::jit::Stack arguments;
  const std::size_t count = op.schema().arguments().size(), first = stack.size() - count;
  for (std::size_t n = 0; n < count; ++n) {
    const bool is_out = op.schema().arguments()[n].is_out();
    arguments.push_back(with(stack[first + n], [&](const at::Tensor& each) {
      if (!is_foreign(each)) return each.defined() ? each.detach().clone() : each;  // As it is now.
      const at::Tensor there = opened_memory(each);
      if (!is_out) return there;
      // An operator may give it other sizes for a while.
      written.emplace_back(at::empty_strided(there.sizes(), there.strides(), there.options()),
                           there);
      return written.back().first;
    }));
  }
  std::vector<at::Tensor> made;  // Undefined for results that are arguments.
  const auto result = [&](const at::Tensor& of_zeros) {
    if (const auto argument = zeros.argument(of_zeros)) {
      made.emplace_back();
      return *argument;
    }
    const c10::Device device(kForeign, static_cast<c10::DeviceIndex>(current_device()));
    const at::Tensor there =
        at::empty_strided(of_zeros.sizes(), of_zeros.strides(), of_zeros.options().device(device));
    made.push_back(opened_memory(there));
    return there;
  };
  stack.resize(stack.size() - op.schema().arguments().size());
  for (const c10::IValue& each : results) stack.push_back(with(each, result));
  enqueue(stream, [op, arguments = std::move(arguments), made = std::move(made),
                   written = std::move(written)]() mutable {
    op.callBoxed(arguments);
    for (const auto& [from, to] : written) to.copy_(from);
    std::vector<at::Tensor> computed;
    for (const c10::IValue& each : arguments) collect(each, computed);
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (made[i].defined()) made[i].copy_(computed[i]);
    }
  });
}

}  // namespace penstock::testing_support::foreign
