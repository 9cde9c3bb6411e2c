// A pass as a device and its link do it: kernels, and messages that travel beside them.
//
// A probe records it, and a plan prices it.  Knows no layers.
// Units: bytes, seconds.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/plan/devices/device_model.h"
#include "penstock/plan/devices/kernel.h"

namespace penstock::devices {

struct PassStep {
  enum class Kind : std::uint8_t {
    Launch,  // The host launches kernels.
    Begin,   // Messages begin to come, those of all other ranks together.
    Await    // What comes on the device waits for them.
  };
  Kind kind = Kind::Launch;
  Kernels kernels = {};
  std::int64_t bytes = 0;   // Begin: bytes that come.
  std::int64_t number = 0;  // Await: which Begin, from 0.

  friend bool operator==(const PassStep&, const PassStep&) = default;
};
using Pass = std::vector<PassStep>;

// A rank's link to those that it exchanges with.
struct PassLink {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0: unlimited.
};

// The pass's time, where all ranks do it at one time.  Messages share the link, one after the
// other.  REQUIRES: each Await is behind its Begin.
double seconds_of(const Pass& pass, const DeviceModel& device, const PassLink& link);

}  // namespace penstock::devices
