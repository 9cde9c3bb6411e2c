// The TCP port at which the ranks of one machine meet.
//
// Used by launcher.h.  Knows IPv4 addresses only, and nothing about what is said over the port.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "penstock/core/file_descriptor.h"

namespace penstock::launch {

struct Port {
  std::uint16_t number = 0;
  FileDescriptor socket;  // Bound; close-on-exec.
};

// Throws ConfigError where `host` stands for every address of this machine, as 0.0.0.0 does: ranks
// tell each other one.
void check_single_address(const std::string& host);

// A socket that listens on `host`:`port`, where port 0 means a free one.
// Throws ConfigError when the address is not this machine's or the port is taken; the text names
// the port and, when it can be found, the process that holds it.
Port listen_on(const std::string& host, std::uint16_t port);

// Does what listen_on does, but binds only: close the socket, and a program can listen there
// itself.
Port reserve_port(const std::string& host, std::uint16_t port);

struct PortHolder {
  std::int64_t pid = 0;
  std::string name;  // Name in /proc/PID/comm.
};

// The process that listens on `port`: the oldest of those that hold its socket, since children
// inherit it and may have lower numbers.  Nothing when none does, or when it is another user's.
std::optional<PortHolder> holder_of_port(std::uint16_t port);

}  // namespace penstock::launch
