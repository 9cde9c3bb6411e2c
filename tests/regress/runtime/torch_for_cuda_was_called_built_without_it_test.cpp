// On a machine without a device, a run said of a torch for CUDA that it is built without CUDA.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "penstock/runtime/rank/device.h"

namespace penstock::rank {
namespace {

struct NoDevices final : c10::impl::NoOpDeviceGuardImpl<at::kCUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};

// Does what loading libc10_cuda does, where there is no device.
[[noreturn]] void tell_of_a_torch_for_cuda() {
  static const NoDevices guard;
  const c10::impl::DeviceGuardImplRegistrar registrar(at::kCUDA, &guard);
  const c10::Device chosen = choose_device(config::Device::Auto, 0);
  std::cerr << device_text(config::Device::Auto, chosen);
  std::_Exit(chosen.is_cpu() ? 0 : 1);
}

TEST(DeviceDeathTest, ATorchForCudaWithoutADeviceIsNotCalledBuiltWithoutCuda) {
  EXPECT_EXIT(tell_of_a_torch_for_cuda(), testing::ExitedWithCode(0),
              "cpu, since torch .* sees no CUDA device here");
}

}  // namespace
}  // namespace penstock::rank
