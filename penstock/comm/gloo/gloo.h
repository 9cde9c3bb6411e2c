// The Gloo implementation of Communicator, over any c10d store.
//
// Made by connect() and run_ranks() only.  Each link and each group is a process group of its own,
// so that sockets exist only between ranks that talk.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

std::unique_ptr<Communicator> make_gloo(c10::intrusive_ptr<c10d::Store> store, Rank rank,
                                        std::int32_t world_size, const std::string& listen,
                                        std::chrono::milliseconds deadline);

}  // namespace penstock::comm
