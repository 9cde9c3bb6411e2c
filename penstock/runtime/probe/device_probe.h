// Measures a device and the links between ranks of this host: the figures by which steps that do
// not run are priced (plan/devices/device_model.h).
//
// `penstock profile --device` writes them.  All ranks measure at one time, each as one of a run
// would compute: on a thread of its own, with whatever they share.  Knows no model.
// Units: seconds, bytes, operations.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>

#include "penstock/plan/devices/device_model.h"

namespace penstock::probe {

struct DeviceProbing {
  c10::Device device =
      at::kCPU;            // The first one of its kind is measured, unless it is a processor.
  std::int32_t ranks = 2;  // At least 2.
  double seconds = 0.3;    // Time of each measurement, of which there are about forty.
  std::function<void(const std::string& what)> begins = [](const std::string&) {};
};

// Medians.  Figures of the network between hosts are those of links.
// Throws: CommError where ranks cannot meet; c10::Error of the device.
devices::DeviceModel measure_device(const DeviceProbing& probing);

}  // namespace penstock::probe
