// Meeting the other ranks at a store that rank 0 itself opens.
//
// communicator.h has connect() for all other stores.
#pragma once
#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

// Does what connect(rendezvous, deadline) does.
// first_word: how long what listens at the store's address may leave rank 0's first word out.
// Where rank 0 opens that port, whoever is silent there is another program.  0: until the
// deadline.
// Throws: as that; ConfigError for a host that nobody knows; CommError that says so, where the
// store is another run's.
std::unique_ptr<Communicator> connect(const Rendezvous& rendezvous,
                                      std::chrono::milliseconds deadline,
                                      std::chrono::milliseconds first_word);

// Does what run_ranks() does, for ranks on devices of their numbers, of a type that NCCL takes.
void run_ranks_on(c10::DeviceType type, std::int32_t world_size,
                  const std::function<void(Communicator&)>& body,
                  std::chrono::milliseconds deadline, Transport transport = Transport::Auto);

// Sets up MKL's vector functions, tanh and others, in this thread alone.  Where two threads of a
// process call their first one at the same time, one in some thousand has them less exact from then
// on: tanh by 1e-4.  connect() and run_ranks() have done it before a rank computes.
void set_up_vector_functions();

}  // namespace penstock::comm
