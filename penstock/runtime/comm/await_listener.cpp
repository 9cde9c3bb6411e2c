#include "penstock/runtime/comm/await_listener.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/socket.h"

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenTries(100);
// Time that name servers have to answer; some never do.
constexpr std::chrono::seconds kNameServers(5);

Address known_addresses(const std::string& host, const std::string& port) {
  const auto end = Clock::now() + kNameServers;
  while (true) {
    LookUp look_up = look_up_host(host, port);
    if (look_up.found) return std::move(look_up.found);
    if (look_up.error != EAI_AGAIN || Clock::now() > end) {
      throw ConfigError(
          str("no host ", in_quotes(host), " is known: ", gai_strerror(look_up.error)),
          {"MASTER_ADDR is a name or an address of rank 0's host, as this host knows it"});
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

// 0, or why there is no connection.
int try_to_connect(const addrinfo& address, Clock::time_point end) {
  const FileDescriptor socket = begin_connect(address);
  if (!socket) return errno;
  pollfd made{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  while (::poll(&made, 1, ms_left(end)) < 0 && errno == EINTR) {
  }
  return made.revents == 0 ? ETIMEDOUT : connect_error(socket);
}

}  // namespace

void require_known(const std::string& host) { known_addresses(host, "0"); }

void await_listener(const std::string& host, std::uint16_t port,
                    std::chrono::milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  int error = ETIMEDOUT;
  do {
    const Address found = known_addresses(host, str(port));
    for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
      error = try_to_connect(*each, end);
      if (error == 0) return;
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(kBetweenTries, end - Clock::now()));
  } while (Clock::now() < end);
  throw CommError(str("nothing listens there: ", std::strerror(error)), {"is rank 0 started?"});
}

}  // namespace penstock::comm
