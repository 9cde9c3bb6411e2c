// Where a rank has what it does not use just now.
//
// Options of zero/ and train/ say it of parameters and of optimizer states.  Knows neither.
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
