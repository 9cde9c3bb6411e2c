#include "penstock/runtime/emulate/by_shape.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <limits>
#include <memory>
#include <optional>

#include "penstock/runtime/emulate/operators.h"
#include "penstock/runtime/emulate/virtual_device.h"
#include "penstock/runtime/nn/host_kernels.h"

namespace penstock::emulate {
namespace {

constexpr c10::DeviceIndex kOnly = 0;

class DeviceMeter final : public probe::Meter {
 public:
  explicit DeviceMeter(Kernels kernels) {
    if (kernels == Kernels::Host) host_.emplace(charge_pass);
  }
  std::int64_t now() const override { return rank_of(kOnly).live_bytes() - start_; }
  std::int64_t peak() const override { return rank_of(kOnly).peak_bytes() - start_; }
  void reset_peak() override { rank_of(kOnly).forget_peak(); }
  devices::Kernels take_kernels() override { return rank_of(kOnly).take_kernels(); }

 private:
  std::optional<nn::HostKernels> host_;
  std::int64_t start_ = rank_of(kOnly).live_bytes();
};

}  // namespace

bool can_run_by_shape() { return !c10::impl::hasDeviceGuardImpl(kVirtual); }

probe::Place place_by_shape(Kernels kernels) {
  devices::DeviceModel device = devices::device_models().front();
  device.memory_bytes = std::numeric_limits<double>::infinity();
  install(device, /*ranks=*/1, /*value_read=*/0.0, /*stop=*/{});
  return {.device = c10::Device(kVirtual, kOnly),
          .make_meter = [kernels] { return std::make_unique<DeviceMeter>(kernels); }};
}

}  // namespace penstock::emulate
