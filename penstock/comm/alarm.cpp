#include "penstock/comm/alarm.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

#include "penstock/comm/acceptor.h"
#include "penstock/comm/socket.h"

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAlarmPatience(1);

// One listener that is told.
class Call {
 public:
  Call(const std::string& address, Rank from, const std::string& text) {
    const Door door = parse_door(address);
    const Address found = resolve(door.host, door.port);
    if (!found) return;
    to_ = begin_connect(*found);
    message_ = greeting(door.word, Purpose::Alarm, from) + text;
  }

  bool is_over() const { return !to_; }
  pollfd waits_for() const { return {.fd = to_.get(), .events = POLLOUT, .revents = 0}; }
  // Says what the listener takes; closes behind the last of it.
  void go_on() {
    const ssize_t put =
        send(to_.get(), message_.data() + sent_, message_.size() - sent_, MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (put > 0) sent_ += static_cast<std::size_t>(put);
    if (put < 0 || sent_ == message_.size()) to_.reset();
  }

 private:
  FileDescriptor to_;
  std::string message_;
  std::size_t sent_ = 0;
};

// All at once: a host that is gone must not delay the news for the others.
void tell(std::vector<Call> calls) {
  const auto end = Clock::now() + kAlarmPatience;
  while (true) {
    std::erase_if(calls, [](const Call& call) { return call.is_over(); });
    if (calls.empty()) return;
    std::vector<pollfd> ready;
    for (const Call& call : calls) ready.push_back(call.waits_for());
    const int count = poll(ready.data(), ready.size(), ms_left(end));
    if (count == 0 || Clock::now() >= end || (count < 0 && errno != EINTR)) return;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (count > 0 && ready[i].revents != 0) calls[i].go_on();
    }
  }
}

}  // namespace

void raise_alarm(const std::vector<std::string>& addresses, Rank from,
                 const std::string& text) noexcept {
  constexpr std::size_t kAtOnce = 256;  // A process has some 1,000 files.
  try {
    const std::string told = text.substr(0, kAlarmBytesMax);
    std::vector<Call> calls;
    for (const std::string& address : addresses) {
      calls.emplace_back(address, from, told);
      if (calls.size() == kAtOnce) tell(std::exchange(calls, {}));
    }
    tell(std::move(calls));
  } catch (const std::exception&) {  // No memory: the ranks learn it when this one ends.
  }
}

}  // namespace penstock::comm
