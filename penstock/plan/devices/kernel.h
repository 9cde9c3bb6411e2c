// A kernel by what it costs, and its seconds on a device.
//
// A virtual device prices what it launches by it, and a plan the passes of layers.  Products and
// attention are priced by their operations, all else by the bytes that it reads and writes once.
// Units: operations (an addition or a multiplication), bytes, seconds.
#pragma once
#include <compare>
#include <cstdint>
#include <map>

#include "penstock/plan/devices/device_model.h"

namespace penstock::devices {

// `Short`: of bf16 or fp16.
enum class KernelKind : std::uint8_t {
  Product,
  ShortProduct,
  Attention,
  ShortAttention,
  AttentionBackward,
  ShortAttentionBackward,
  Other
};

struct Kernel {
  KernelKind kind = KernelKind::Other;
  std::int64_t amount = 0;  // Operations; of Other, bytes.

  auto operator<=>(const Kernel&) const = default;
};

// How often each was launched.
using Kernels = std::map<Kernel, std::int64_t>;

// At least what any kernel takes.
double seconds_of(const Kernel& kernel, const DeviceModel& device);

// The time of kernels that follow each other: the device's, or their host's where that is longer.
double seconds_of(const Kernels& kernels, const DeviceModel& device);

// The parts of the time of such kernels.
struct KernelSeconds {
  double products = 0.0;
  double attention = 0.0;
  double others = 0.0;
  double host = 0.0;  // The device waits for its host to launch them.

  double all() const { return products + attention + others + host; }
  KernelSeconds& operator+=(const KernelSeconds& more);
  friend KernelSeconds operator*(double times, const KernelSeconds& seconds);
};
// Law: all() of it is seconds_of() them, but for rounding.
KernelSeconds seconds_by_kind(const Kernels& kernels, const DeviceModel& device);

// Operations of products and of attention.
double operations_of(const Kernels& kernels);

}  // namespace penstock::devices
