// TCP sockets of this rank and addresses of hosts, IPv4 and IPv6.
//
// Every socket made here is non-blocking and closes on exec; every call goes on after a signal.
// Knows nothing of what is said over them.
#pragma once
#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/file_descriptor.h"

namespace penstock::comm {

struct FreeAddress {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
using Address = std::unique_ptr<addrinfo, FreeAddress>;

// The addresses of a name, or of an address in digits.
struct LookUp {
  Address found;
  int error = 0;  // A code of gai_strerror(): why there are no addresses; 0: there are.
};
LookUp look_up_host(const std::string& host, const std::string& port);
// The same; null when there are none.
Address resolve(const std::string& host, const std::string& port);
// Digits of an address: "10.0.0.1", "fd00::1".
std::string digits_of(const addrinfo& address);
std::string digits_of(const sockaddr* address, socklen_t size);

struct Listening {
  FileDescriptor socket;
  std::string port;
};
// Throws: CommError when `host` is no name or address of this host.
Listening listen_at(const std::string& host);

// The connection that is first in line; an empty one, with errno, where there is none.
FileDescriptor accept_at(const FileDescriptor& listening);

// Begins to connect; what is returned becomes writable when that has succeeded or failed.  An empty
// one when it failed at once, with errno.
FileDescriptor begin_connect(const addrinfo& address);
// 0, or why a connection that has become writable was not made.
int connect_error(const FileDescriptor& socket);

// Milliseconds until then, rounded up, not negative: for poll().
int ms_left(std::chrono::steady_clock::time_point end);

}  // namespace penstock::comm
