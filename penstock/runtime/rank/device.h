// Chooses the device on which a rank of `penstock train` computes.
//
// cli/ asks for it and gives it to run().  Knows CUDA by what torch says of it; nothing here is
// compiled against CUDA.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "penstock/config/config.h"

namespace penstock::rank {

// The host, or the CUDA device number `local_rank`, modulo their number: where there are fewer than
// ranks of this host, ranks share.
// Throws: ConfigError when CUDA is asked for and this torch has none, or sees no device.
c10::Device choose_device(config::Device wanted, std::int32_t local_rank);

// The device that was chosen, and why, where that was left to us: "cuda:0", "cpu, since
// torch 2.13.0 is built without CUDA".
std::string device_text(config::Device wanted, c10::Device chosen);

}  // namespace penstock::rank
