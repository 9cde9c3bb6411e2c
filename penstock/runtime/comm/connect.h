// Meeting the other ranks at a store that rank 0 itself opens.
//
// communicator.h has connect() for all other stores.
#pragma once
#include <chrono>
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

}  // namespace penstock::comm
