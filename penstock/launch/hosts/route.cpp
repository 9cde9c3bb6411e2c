#include "penstock/launch/hosts/route.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/text.h"

namespace penstock::hosts {
namespace {

[[noreturn]] void throw_no_way(const std::string& peer, const std::string& why) {
  throw ConfigError(
      str("cannot find out the address at which host ", peer, " reaches rank 0: ", why),
      {"name it: --master_addr ADDRESS"});
}

sockaddr_in resolve(const std::string& peer) {
  const addrinfo wanted{.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(peer.c_str(), nullptr, &wanted, &found);
  if (error != 0) throw_no_way(peer, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  sockaddr_in address{};
  std::memcpy(&address, found->ai_addr, sizeof address);
  address.sin_port = htons(9);  // Nothing is sent.
  return address;
}

}  // namespace

bool is_ipv4(const std::string& text) {
  in_addr ignored{};
  return ::inet_pton(AF_INET, text.c_str(), &ignored) == 1;
}

std::string address_of_this_end() {
  const char* const variable = std::getenv("SSH_CONNECTION");  // CLIENT PORT SERVER PORT.
  const auto words = split(variable == nullptr ? "" : variable, ' ');
  return words.size() == 4 && is_ipv4(words[2]) ? words[2] : "-";
}

std::string address_on_the_way_to(const std::string& peer) {
  const std::string host = peer.substr(peer.find('@') + 1);
  const sockaddr_in remote = resolve(host);
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&remote), sizeof remote) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    throw_no_way(host, std::strerror(errno));
  }
  char text[INET_ADDRSTRLEN];
  ::inet_ntop(AF_INET, &own.sin_addr, text, sizeof text);
  return text;
}

std::string interface_on_the_way_to(const std::string& peer) {
  std::string address;
  try {
    address = address_on_the_way_to(peer);
  } catch (const ConfigError&) {
    return "";
  }
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, ::freeifaddrs);
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    const auto* own = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    char text[INET_ADDRSTRLEN];
    if (address == ::inet_ntop(AF_INET, &own->sin_addr, text, sizeof text)) return each->ifa_name;
  }
  return "";
}

}  // namespace penstock::hosts
