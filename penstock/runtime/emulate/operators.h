// torch's operators on the virtual device.
//
// An operator's results are made by torch's own kernel for "meta" tensors, on tensors with the same
// sizes, strides and sharing of memory; what has no such kernel has one here.  Views cost nothing;
// all else is one kernel.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace penstock::emulate {

// REQUIRES: called once.
void install_operators();

// What a layer's own pass over tensors there costs (nn::HostKernels).
void charge_pass(std::string_view pass, const std::vector<at::Tensor>& reads,
                 const std::vector<at::Tensor>& writes);

}  // namespace penstock::emulate
