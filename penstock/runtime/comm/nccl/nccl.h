// NCCL: channels between the CUDA devices of two ranks, where this process has its library.
//
// World makes them for links between ranks that have a device each.
#pragma once
#include <c10/core/Device.h>

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "penstock/runtime/comm/announced_link.h"

namespace penstock::comm {

// The same for two ranks of a host that share this device of CUDA's, another for those that do not.
std::string cuda_identity(c10::Device device);

// Connects both directions to `peer`, who calls it too.  REQUIRES: both have the library.
// Throws: CommError, after the rules' deadline.
Channels connect_nccl(const c10::intrusive_ptr<c10d::Store>& store, Rank rank, Rank peer,
                      c10::Device device, WaitRules& rules);

}  // namespace penstock::comm
