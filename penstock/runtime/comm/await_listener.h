// The wait for a store that another process opens, until something listens at its address.
//
// connect() begins with it, so that three mistakes are three errors: a host that nobody knows, a
// port at which nothing listens, a program that is no store.  Knows no stores.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace penstock::comm {

// Throws: ConfigError for a host that nobody knows, once the name servers have answered.
void require_known(const std::string& host);

// Throws: likewise; CommError where nothing has listened there until the deadline.
void await_listener(const std::string& host, std::uint16_t port,
                    std::chrono::milliseconds deadline);

}  // namespace penstock::comm
