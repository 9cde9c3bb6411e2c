#include "penstock/runtime/comm/visit.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "penstock/runtime/comm/socket.h"

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;

class Visitor {
 public:
  Visitor(const std::string& address, Purpose purpose, Rank from, const std::string& text)
      : asks_(purpose == Purpose::Question) {
    const Door door = parse_door(address);
    const Address found = resolve(door.host, door.port);
    if (!found) return;
    to_ = begin_connect(*found);
    if (!to_ && errno == ECONNREFUSED) visited_.end = Visited::End::Gone;
    message_ = greeting(door.word, purpose, from) + text;
  }

  bool is_over() const { return !to_; }
  pollfd waits_for() const {
    const bool listens = sent_ == message_.size();
    return {.fd = to_.get(), .events = static_cast<short>(listens ? POLLIN : POLLOUT)};
  }
  void go_on() { sent_ < message_.size() ? speak() : listen(); }
  const Visited& visited() const { return visited_; }

 private:
  void over(Visited::End end) {
    visited_.end = end;
    to_.reset();
  }

  void speak() {
    const ssize_t put =
        send(to_.get(), message_.data() + sent_, message_.size() - sent_, MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (put < 0) {
      return over(errno == ECONNREFUSED ? Visited::End::Gone : Visited::End::Silent);
    }
    sent_ += static_cast<std::size_t>(put);
    if (sent_ < message_.size()) return;
    if (!asks_) return over(Visited::End::Heard);
    shutdown(to_.get(), SHUT_WR);  // The end of the question.
  }

  void listen() {
    std::array<char, 1024> part;
    const ssize_t got = recv(to_.get(), part.data(), part.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) {
      visited_.answer.append(part.data(), static_cast<std::size_t>(got));
      if (visited_.answer.size() > kNewsBytesMax) over(Visited::End::Silent);
      return;
    }
    over(visited_.answer.empty() ? Visited::End::Silent : Visited::End::Heard);
  }

  bool asks_;
  FileDescriptor to_;
  std::string message_;
  std::size_t sent_ = 0;
  Visited visited_;
};

// All at once: a host that is gone must not hold up the others.
void go_on_until(Clock::time_point end, std::span<Visitor> visitors) {
  while (true) {
    std::vector<pollfd> ready;
    std::vector<Visitor*> under_way;
    for (Visitor& visitor : visitors) {
      if (visitor.is_over()) continue;
      ready.push_back(visitor.waits_for());
      under_way.push_back(&visitor);
    }
    if (ready.empty()) return;
    const int count = poll(ready.data(), ready.size(), ms_left(end));
    if (count == 0 || Clock::now() >= end || (count < 0 && errno != EINTR)) return;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      if (count > 0 && ready[i].revents != 0) under_way[i]->go_on();
    }
  }
}

}  // namespace

std::vector<Visited> visit(const std::vector<std::string>& addresses, Purpose purpose, Rank from,
                           const std::string& text, std::chrono::milliseconds patience) {
  constexpr std::size_t kAtOnce = 256;  // A process has some 1,000 files.
  std::vector<Visited> visited;
  for (std::size_t first = 0; first < addresses.size(); first += kAtOnce) {
    std::vector<Visitor> visitors;
    const std::size_t end = std::min(addresses.size(), first + kAtOnce);
    for (std::size_t i = first; i < end; ++i) {
      visitors.emplace_back(addresses[i], purpose, from, text.substr(0, kNewsBytesMax));
    }
    go_on_until(Clock::now() + patience, visitors);
    for (const Visitor& visitor : visitors) visited.push_back(visitor.visited());
  }
  return visited;
}

}  // namespace penstock::comm
