#include "penstock/runtime/rank/device.h"

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::rank {
namespace {

std::int32_t cuda_devices() {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return 0;
  return c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
}

// A torch for CUDA has guards of its devices, seen or not; at::hasCUDA() asks for a device.
std::string why_none() {
  const bool is_for_cuda = c10::impl::hasDeviceGuardImpl(at::kCUDA);
  return str("torch ", TORCH_VERSION,
             is_for_cuda ? " sees no CUDA device here" : " is built without CUDA");
}

}  // namespace

c10::Device choose_device(config::Device wanted, std::int32_t local_rank) {
  if (wanted == config::Device::Cpu) return at::kCPU;
  const std::int32_t devices = cuda_devices();
  if (devices > 0) {
    return {at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % devices)};
  }
  if (wanted == config::Device::Auto) return at::kCPU;
  throw ConfigError(str("launch.device = cuda: ", why_none()),
                    {"launch.device = auto takes CUDA devices only where there are some"});
}

std::string device_text(config::Device wanted, c10::Device chosen) {
  const bool falls_back = wanted == config::Device::Auto && chosen.is_cpu();
  return falls_back ? str("cpu, since ", why_none()) : chosen.str();
}

}  // namespace penstock::rank
