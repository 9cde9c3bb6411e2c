// A place in which layers run by their shapes alone: nothing is computed and nothing takes memory.
//
// A probe runs layers there (probe/layer_probe.h), and counts what they would take and launch.  It
// is a virtual device whose memory has no end.
#pragma once
#include <cstdint>

#include "penstock/runtime/probe/layer_probe.h"

namespace penstock::emulate {

// Whether this process can have such a place: a torch that is built for CUDA has none.
bool can_run_by_shape();

// Kernels whose memory is counted: some layers have other ones on processors.
enum class Kernels : std::uint8_t { Host, Cuda };

// Makes the process have a virtual device (virtual_device.h), once.  REQUIRES: can_run_by_shape().
probe::Place place_by_shape(Kernels kernels);

}  // namespace penstock::emulate
