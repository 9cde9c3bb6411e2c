// The place in which a rank keeps tensors while it does not use them.
//
// Options of update/ and parameters/ say so for parameters and for optimizer states.  Knows
// neither.
#pragma once
#include <cstdint>
#include <string>

namespace penstock::offload {

enum class Place : std::uint8_t {
  Device,  // The device on which the rank computes.
  Host,    // Host memory.
  File,    // A file, mapped.
};

struct Where {
  Place place = Place::Device;
  std::string folder = {};  // The folder of a File, this rank's.
};

}  // namespace penstock::offload
