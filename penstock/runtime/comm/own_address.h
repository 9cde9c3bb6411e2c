// Finds the address under which the other ranks reach this one, where nobody has said it.
//
// connect() and the Python package ask, before a rank listens anywhere.  Knows no sockets of ranks.
#pragma once
#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::comm {

// Collective over all ranks.  Where all are on one host (one network namespace): 127.0.0.1.  Else
// the address of the interface by which this host reaches the store at `store_host`; on the store's
// own host, the address at which the others reach the store.  Where there is no store's host ("": a
// file), the address of the interface of the default route, or else of the first that is up.
// Throws: CommError when there is none but loopback addresses, or a rank does not come; the
// store's.
std::string choose_own_address(const c10::intrusive_ptr<c10d::Store>& store, Rank rank,
                               std::int32_t world_size, const std::string& store_host,
                               std::chrono::milliseconds deadline);

// The address of this host that its name `host`, as MASTER_ADDR has it, means to other hosts; ""
// when that is not to be seen from here: Debian gives a host's own name the address 127.0.1.1.
std::string own_address_named(const std::string& host);

// The addresses of this host's interfaces that are up, loopback ones left out, IPv4 first.
std::vector<std::string> addresses_of_interfaces();

}  // namespace penstock::comm
