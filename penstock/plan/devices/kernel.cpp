#include "penstock/plan/devices/kernel.h"

#include <algorithm>

namespace penstock::devices {
namespace {

// Operations, or bytes, in a second.
double rate_of(KernelKind kind, const DeviceModel& device) {
  switch (kind) {
    case KernelKind::Product:
      return device.float_peak * device.product_share;
    case KernelKind::ShortProduct:
      return device.short_peak * device.product_share;
    case KernelKind::Attention:
      return device.float_peak * device.attention_share;
    case KernelKind::ShortAttention:
      return device.short_peak * device.attention_share;
    case KernelKind::AttentionBackward:
      return device.float_peak * device.attention_backward_share;
    case KernelKind::ShortAttentionBackward:
      return device.short_peak * device.attention_backward_share;
    case KernelKind::Other:
      break;
  }
  return device.memory_bytes_per_s * device.memory_share;
}

}  // namespace

double seconds_of(const Kernel& kernel, const DeviceModel& device) {
  return std::max(static_cast<double>(kernel.amount) / rate_of(kernel.kind, device),
                  device.kernel_s);
}

double seconds_of(const Kernels& kernels, const DeviceModel& device) {
  return seconds_by_kind(kernels, device).all();
}

KernelSeconds& KernelSeconds::operator+=(const KernelSeconds& more) {
  products += more.products;
  attention += more.attention;
  others += more.others;
  host += more.host;
  return *this;
}

KernelSeconds operator*(double times, const KernelSeconds& seconds) {
  return {.products = times * seconds.products,
          .attention = times * seconds.attention,
          .others = times * seconds.others,
          .host = times * seconds.host};
}

KernelSeconds seconds_by_kind(const Kernels& kernels, const DeviceModel& device) {
  KernelSeconds seconds;
  double on_host = 0.0;
  for (const auto& [kernel, count] : kernels) {
    const double taken = static_cast<double>(count) * seconds_of(kernel, device);
    if (kernel.kind == KernelKind::Other) {
      seconds.others += taken;
    } else if (kernel.kind == KernelKind::Product || kernel.kind == KernelKind::ShortProduct) {
      seconds.products += taken;
    } else {
      seconds.attention += taken;
    }
    on_host += static_cast<double>(count) * device.launch_s;
  }
  seconds.host = std::max(on_host - seconds.all(), 0.0);
  return seconds;
}

double operations_of(const Kernels& kernels) {
  double operations = 0.0;
  for (const auto& [kernel, count] : kernels) {
    if (kernel.kind == KernelKind::Other) continue;
    operations += static_cast<double>(kernel.amount) * static_cast<double>(count);
  }
  return operations;
}

}  // namespace penstock::devices
