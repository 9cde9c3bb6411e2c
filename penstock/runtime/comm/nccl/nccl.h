// NCCL: channels between the CUDA devices of two ranks, where torch has it.
//
// World makes them for links between ranks that have a device each.  Without NCCL in torch, or
// without its header, has_nccl() is false and nothing else may be called.
#pragma once
#include <c10/core/Device.h>

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "penstock/runtime/comm/announced_link.h"

namespace penstock::comm {

bool has_nccl();

// The same for two ranks that share a device, another for those that do not.
std::string device_identity(c10::Device device);

// Connects both directions to `peer`, who calls it too.  Throws: CommError, after the rules'
// deadline.
Channels connect_nccl(const c10::intrusive_ptr<c10d::Store>& store, Rank rank, Rank peer,
                      c10::Device device, const WaitRules& rules);

}  // namespace penstock::comm
