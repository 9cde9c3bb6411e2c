// One call of an operator on tensors without memory, and what it would have changed.
//
// Arguments on the virtual device are replaced by "meta" tensors that share memory as they do. What
// comes back is an argument itself, a view of one, or new.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <vector>

namespace penstock::emulate {

// Tensors of a call: arguments on the virtual device by what the operator does with them.
struct Touched {
  std::vector<at::Tensor> reads, writes;
  std::optional<c10::DeviceIndex> device;  // Place of the first one, or of a new tensor.
};

// What the operator touches of the arguments on the stack.
Touched touched_by(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Replaces the arguments on the stack by the results; new ones are on `device`, and are returned.
// Throws: Error for an operator that torch has no "meta" kernel of.
std::vector<at::Tensor> call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                     c10::DeviceIndex device);

// Replaces them by the arguments that the operator returns.  REQUIRES: it returns no others.
void return_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack);
// Whether an operator returns nothing but arguments that it writes to.
bool returns_arguments(const c10::OperatorHandle& op);

// A new tensor of the virtual device, with the strides of a dense one where none are given.
at::Tensor new_tensor(c10::IntArrayRef sizes, at::ScalarType type, c10::DeviceIndex device,
                      std::optional<c10::IntArrayRef> strides = std::nullopt);

}  // namespace penstock::emulate
