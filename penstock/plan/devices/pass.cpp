#include "penstock/plan/devices/pass.h"

#include <algorithm>
#include <cstddef>

namespace penstock::devices {

double seconds_of(const Pass& pass, const DeviceModel& device, const PassLink& link) {
  double now = 0.0, link_is_free = 0.0, on_host = 0.0;
  std::vector<double> comes;
  for (const PassStep& step : pass) {
    if (step.kind == PassStep::Kind::Launch) {
      for (const auto& [kernel, count] : step.kernels) {
        now += static_cast<double>(count) * seconds_of(kernel, device);
        on_host += static_cast<double>(count) * device.launch_s;
      }
    } else if (step.kind == PassStep::Kind::Begin) {
      const auto bytes = static_cast<double>(step.bytes);
      link_is_free =
          std::max(link_is_free, now) + (link.bytes_per_s > 0 ? bytes / link.bytes_per_s : 0.0);
      comes.push_back(link_is_free + link.latency_s);
    } else {
      now = std::max(now, comes.at(static_cast<std::size_t>(step.number)));
    }
  }
  return std::max(now, on_host);
}

}  // namespace penstock::devices
