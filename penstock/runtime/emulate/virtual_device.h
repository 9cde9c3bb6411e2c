// A device for torch whose tensors have sizes, strides and types, and no memory.
//
// It stands where CUDA would, in a torch for CPUs: whatever asks for a CUDA device finds it.  Each
// index is the device of a rank.  Operators find the shapes of their results by torch's kernels for
// "meta" tensors, and cost time on the rank's clocks.  Copies to the host are zeros, numbers that
// it reads one by one are 1, and truths are false. install() comes before anything asks torch for
// CUDA.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "penstock/runtime/emulate/virtual_rank.h"

namespace penstock::emulate {

inline constexpr c10::DeviceType kVirtual = c10::DeviceType::CUDA;

inline bool is_virtual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kVirtual;
}

// The stream on which this thread launches on a virtual device.
std::int64_t current_stream(c10::DeviceIndex device);

// Makes this process' torch have `ranks` virtual devices of a model, until it ends.
// Throws: ConfigError, where torch is built for CUDA.
void install(const devices::DeviceModel& device, std::int32_t ranks);

// The rank that has this device.  REQUIRES: install().
VirtualRank& rank_of(c10::DeviceIndex device);

}  // namespace penstock::emulate
