#include "penstock/runtime/comm/own_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <sstream>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/interruptible_store.h"
#include "penstock/runtime/comm/socket.h"

namespace penstock::comm {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kNone = "-";
// An address in a network for documentation.  Nobody has it, so packets to it take the default
// route.
constexpr const char* kFarAway = "192.0.2.1";

// Tells hosts apart where the kernel does not say more: each name has a network of its own.
std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// Two processes with one network reach each other over its loopback interface.
std::string network_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[64] = {};
  const bool is_told = readlink("/proc/self/ns/net", network, sizeof network - 1) > 0;
  return str(boot.empty() || !is_told ? host_name() : "", boot, network);
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

std::string usable(const std::string& address) {
  return address.empty() || is_loopback(address) ? "" : address;
}

// Both ends of the way to a host, in digits; empty where there is no way.
struct Way {
  std::string from;
  std::string to;
};

// Sends nothing: a datagram socket that is connected has looked up its way.
Way way_to(const std::string& host) {
  const Address found = resolve(host, "9");
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    const FileDescriptor probe(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (connect(probe.get(), each->ai_addr, each->ai_addrlen) != 0 ||
        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
      continue;
    }
    return {digits_of(reinterpret_cast<const sockaddr*>(&own), size), digits_of(*each)};
  }
  return {};
}

// What a rank tells the others.
struct Place {
  std::string network;
  std::string own;    // Its end of the way to the store.
  std::string store;  // The other end.
};

std::string text_of(const Place& place) {
  const auto word = [](const std::string& text) { return text.empty() ? kNone : text; };
  return str(word(place.network), " ", word(place.own), " ", word(place.store));
}

Place parse_place(const std::vector<std::uint8_t>& bytes) {
  Place place;
  std::istringstream words(std::string(bytes.begin(), bytes.end()));
  words >> place.network >> place.own >> place.store;
  for (std::string* word : {&place.own, &place.store}) {
    if (*word == kNone) word->clear();
  }
  return place;
}

std::string choose(const Place& mine, const std::vector<Place>& places) {
  const auto is_here = [&](const Place& place) { return place.network == mine.network; };
  if (std::ranges::all_of(places, is_here)) return kLoopback;
  if (const std::string own = usable(mine.own); !own.empty()) return own;
  if (is_loopback(mine.own)) {
    for (const Place& place : places) {
      if (!is_here(place) && !usable(place.store).empty()) return place.store;
    }
  }
  if (const std::string far = usable(way_to(kFarAway).from); !far.empty()) return far;
  const auto interfaces = addresses_of_interfaces();
  return interfaces.empty() ? "" : interfaces.front();
}

}  // namespace

std::vector<std::string> addresses_of_interfaces() {
  std::vector<std::string> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      if ((each->ifa_flags & IFF_UP) == 0) continue;
      const auto size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      const std::string address = usable(digits_of(each->ifa_addr, static_cast<socklen_t>(size)));
      // One with a scope, like fe80::1%eth0, means something else on other hosts.
      if (!address.empty() && address.find('%') == std::string::npos) addresses.push_back(address);
    }
  }
  freeifaddrs(first);
  return addresses;
}

std::string own_address_named(const std::string& host) {
  const auto interfaces = addresses_of_interfaces();
  const Address found = resolve(host, "0");
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    const std::string address = digits_of(*each);
    const bool is_meant = is_loopback(address) && (host == address || host == "localhost");
    if (is_meant || std::ranges::find(interfaces, address) != interfaces.end()) return address;
  }
  return "";
}

std::string choose_own_address(const c10::intrusive_ptr<c10d::Store>& raw_store, Rank rank,
                               std::int32_t world_size, const std::string& store_host,
                               std::chrono::milliseconds deadline) {
  const auto never = std::make_shared<Interrupt>();  // There is nobody yet to raise it.
  InterruptibleStore store(raw_store, never);
  const Way way = store_host.empty() ? Way{} : way_to(store_host);
  const Place mine{.network = network_identity(), .own = way.from, .store = way.to};
  std::vector<std::string> keys;
  for (std::int32_t each = 0; each < world_size; ++each) keys.push_back(str("place/", each));
  const std::string text = text_of(mine);
  store.set(keys[rank.index()], std::vector<std::uint8_t>(text.begin(), text.end()));
  store.wait(keys, deadline);
  std::vector<Place> places;
  for (const auto& bytes : store.multiGet(keys)) places.push_back(parse_place(bytes));
  const std::string chosen = choose(mine, places);
  if (!chosen.empty()) return chosen;
  throw CommError(str("rank ", rank,
                      " has no address at which ranks of other hosts reach it: its "
                      "interfaces have loopback addresses only"),
                  {"--host names one"});
}

}  // namespace penstock::comm
