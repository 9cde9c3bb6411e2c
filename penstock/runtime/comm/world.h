// The Communicator: a store for texts, and a link per peer for messages and collectives.
//
// Made by connect() and run_ranks() only.  It chooses the transport of each link.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

// of_nccl: the type of devices that NCCL takes; a stand-in's, in tests of them.
std::unique_ptr<Communicator> make_world(c10::intrusive_ptr<c10d::Store> store, Rank rank,
                                         std::int32_t world_size, const std::string& listen,
                                         Transport transport, std::chrono::milliseconds deadline,
                                         c10::Device device = at::kCPU,
                                         c10::DeviceType of_nccl = at::kCUDA);

}  // namespace penstock::comm
