// The addresses of this host, as the hosts of a run know it.
//
// Used by host_agent.h.  Knows IPv4 only, as the store of ranks does.
#pragma once
#include <string>

namespace penstock::hosts {

bool is_ipv4(const std::string& text);

// The address at which sshd was called, by SSH_CONNECTION; "-": no ssh has started this process.
std::string address_of_this_end();

// The address of the interface from which packets go to `peer`, an address or a name.
// Throws: ConfigError where there is no way.
std::string address_on_the_way_to(const std::string& peer);

// The name of that interface, for Gloo; "": it cannot be found out.
std::string interface_on_the_way_to(const std::string& peer);

}  // namespace penstock::hosts
