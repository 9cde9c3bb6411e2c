// Where a rank keeps tensors while it does not use them.
//
// Options of update/ and replicas/ say so for parameters and for optimizer states.  Knows neither.
#pragma once
#include <cstdint>
#include <string>

namespace penstock::offload {

enum class Place : std::uint8_t {
  Device,  // Where the rank computes.
  Host,    // In host memory.
  File,    // In a file, mapped.
};

struct Where {
  Place place = Place::Device;
  std::string folder = {};  // For File: of this rank's.
};

}  // namespace penstock::offload
