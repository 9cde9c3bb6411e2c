#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/plan/devices/device_model.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome device_model(std::string_view input) {
  try {
    const devices::DeviceModel device = devices::parse_device(std::string(input), "input");
    PENSTOCK_CHECK(device.memory_bytes > 0 && device.product_share <= 1.0, device.memory_bytes);
    PENSTOCK_CHECK(device.devices_per_host >= 1, device.devices_per_host);
    return Outcome::Accepted;
  } catch (const ParseError&) {
    return Outcome::Refused;
  } catch (const ConfigError&) {
    return Outcome::Refused;
  }
}

}  // namespace penstock::fuzz
