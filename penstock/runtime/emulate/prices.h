// What a kernel is (plan/devices/kernel.h), by its operator and the shapes of its tensors.
//
// Operators ask it for what they launch.  Knows no device and no seconds.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "penstock/plan/devices/kernel.h"

namespace penstock::emulate {

using devices::Kernel;
using devices::KernelKind;

// Kernel of an operator by name, "aten::mm", with the tensors that it reads and writes.
Kernel kernel_of(std::string_view name, const std::vector<at::Tensor>& reads,
                 const std::vector<at::Tensor>& writes);
// The same of a processor, which adds up doubles, of norms, without writing them anywhere.
Kernel processor_kernel_of(std::string_view name, const std::vector<at::Tensor>& reads,
                           const std::vector<at::Tensor>& writes);

// Attention with these queries and keys, forward or backward; causal attention has half of the
// operations.
Kernel kernel_of_attention(const at::Tensor& queries, const at::Tensor& keys, bool is_causal,
                           bool is_backward);

}  // namespace penstock::emulate
