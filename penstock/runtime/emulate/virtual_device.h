// A device for torch whose tensors have sizes, strides and types, and no memory.
//
// It stands where CUDA would, in a torch for CPUs: whatever asks for a CUDA device finds it.  Each
// index is the device of a rank.  Operators find the shapes of their results by torch's kernels for
// "meta" tensors, and cost time on the rank's clocks.  Copies to the host are zeros, numbers that
// it reads one by one are 1, and truths are false; to layers and losses, values are as install()
// says.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string_view>

#include "penstock/runtime/emulate/virtual_rank.h"

namespace penstock::emulate {

inline constexpr c10::DeviceType kVirtual = c10::DeviceType::CUDA;

inline bool is_virtual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kVirtual;
}

// The stream on which this thread launches on a virtual device.
std::int64_t current_stream(c10::DeviceIndex device);

// The largest number of devices of a process.
inline constexpr int kDevicesMost = 127;

// What all values of tensors are to a layer or a loss that reads some in the host; absent: an
// error.
using ValueRead = std::optional<double>;

// Makes this process' torch have `ranks` virtual devices of a model, in place of those that it had.
// REQUIRES: ranks <= kDevicesMost, and nobody computes on the earlier ones.
// Throws: ConfigError, where torch is built for CUDA.
void install(const devices::DeviceModel& device, std::int32_t ranks, ValueRead value_read,
             const std::stop_token& stop);

// The rank that has this device.  REQUIRES: install().
VirtualRank& rank_of(c10::DeviceIndex device);
std::shared_ptr<VirtualRank> shared_rank(c10::DeviceIndex device);

// Throws: Error, once install()'s `stop` is asked for.
void check_goes_on();

// The value that the host gets which reads it now, by an operator; absent: nobody who asks is a
// layer or a loss.
// Throws: Error where they get none.
ValueRead value_for_layers(std::string_view op);

}  // namespace penstock::emulate
