#include "penstock/runtime/comm/acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/core/background_thread.h"
#include "penstock/core/error.h"
#include "penstock/core/random_bytes.h"
#include "penstock/core/text.h"
#include "penstock/core/wake_up.h"
#include "penstock/runtime/comm/socket.h"

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWordBytes = 32;
constexpr std::size_t kRankDigits = 10;
constexpr std::size_t kGreetingBytes = kWordBytes + 1 + kRankDigits;
constexpr std::size_t kCallersMax = 256;
constexpr std::chrono::seconds kCallerPatience(5);
constexpr std::chrono::milliseconds kPause(100);  // When the process has no descriptor left.

// 128 random bits in hexadecimal digits.
std::string make_word() {
  std::array<std::byte, kWordBytes / 2> bytes{};
  fill_with_random_bytes(bytes);
  std::string word;
  for (const std::byte byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    word += "0123456789abcdef"[value >> 4];
    word += "0123456789abcdef"[value & 15];
  }
  return word;
}

// A connection whose greeting, or news, is not complete.
struct Caller {
  FileDescriptor socket;
  Clock::time_point end;
  std::string said;

  bool is_greeted() const { return said.size() >= kGreetingBytes; }
  bool wants(Purpose purpose) const { return said[kWordBytes] == static_cast<char>(purpose); }
  Rank rank() const {
    return Rank(static_cast<std::int32_t>(
        parse_integer(std::string_view(said).substr(kWordBytes + 1, kRankDigits)).value_or(-1)));
  }
};

// Whether `said` may be the beginning of what a rank says.
bool is_admissible(std::string_view said, std::string_view word) {
  if (said.substr(0, kWordBytes) != word.substr(0, said.size())) return false;
  if (said.size() <= kWordBytes) return true;
  const auto purpose = static_cast<Purpose>(said[kWordBytes]);
  constexpr std::array kPurposes = {Purpose::Alarm, Purpose::Link, Purpose::Question};
  if (std::ranges::find(kPurposes, purpose) == kPurposes.end()) return false;
  return std::ranges::all_of(said.substr(kWordBytes + 1, kRankDigits),
                             [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

struct Acceptor::Listener {
  Listening listening;
  WakeUp stop{"let ranks in"};
  std::string word = make_word();
  Visits visits;
  std::vector<Caller> callers;  // The oldest first.
  Clock::time_point pause_end;
  std::thread thread;

  void run() {
    while (true) {
      std::vector<pollfd> ready = {{.fd = stop.descriptor(), .events = POLLIN, .revents = 0}};
      for (const Caller& caller : callers) {
        ready.push_back({.fd = caller.socket.get(), .events = POLLIN, .revents = 0});
      }
      const bool pauses = Clock::now() < pause_end;
      if (!pauses) {
        ready.push_back({.fd = listening.socket.get(), .events = POLLIN, .revents = 0});
      }
      if (poll(ready.data(), ready.size(), timeout()) < 0) continue;  // EINTR, or no memory.
      if (ready[0].revents != 0) return;
      hear(ready);
      if (!pauses && ready.back().revents != 0) accept_all();
    }
  }

  int timeout() const {
    int ms = -1;
    const auto at_most = [&](Clock::time_point end) {
      ms = ms < 0 ? ms_left(end) : std::min(ms, ms_left(end));
    };
    for (const Caller& caller : callers) at_most(caller.end);
    if (Clock::now() < pause_end) at_most(pause_end);
    return ms;
  }

  // ready[1 + i] is of the i-th caller.
  void hear(const std::vector<pollfd>& ready) {
    const auto now = Clock::now();
    std::vector<Caller> left;
    for (std::size_t i = 0; i < callers.size(); ++i) {
      const bool goes_on = ready[1 + i].revents == 0 || hear(callers[i]);
      if (goes_on && now < callers[i].end) left.push_back(std::move(callers[i]));
    }
    callers = std::move(left);
  }

  // Whether there is more to hear from a caller; takes what it has said so far.
  bool hear(Caller& caller) {
    std::array<char, 4096> part;
    while (true) {
      // Not a byte more than the greeting: what follows is the link's.
      const std::size_t most =
          caller.is_greeted() ? part.size() : kGreetingBytes - caller.said.size();
      const ssize_t got = recv(caller.socket.get(), part.data(), most, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno == EAGAIN;
      if (got == 0) {
        if (caller.is_greeted()) take(caller);
        return false;
      }
      caller.said.append(part.data(), static_cast<std::size_t>(got));
      if (!is_admissible(caller.said, word)) return false;
      if (caller.said.size() > kGreetingBytes + kNewsBytesMax) return false;
      if (caller.is_greeted() && caller.wants(Purpose::Link)) {
        visits.link(caller.rank(), std::move(caller.socket));
        return false;
      }
    }
  }

  // A caller has said all.
  void take(const Caller& caller) {
    if (caller.wants(Purpose::Alarm)) return visits.alarm(caller.said.substr(kGreetingBytes));
    if (!visits.question) return;
    // A connection that is new takes a few words at once.
    const std::string answer = visits.question();
    send(caller.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  }

  void accept_all() {
    while (true) {
      FileDescriptor socket = accept_at(listening.socket);
      if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (!socket) {
        if (errno != EAGAIN) pause_end = Clock::now() + kPause;
        return;
      }
      if (callers.size() == kCallersMax) callers.erase(callers.begin());
      callers.push_back({.socket = std::move(socket), .end = Clock::now() + kCallerPatience});
    }
  }
};

Acceptor::Acceptor(const std::string& host, Visits visits)
    : listener_(std::make_unique<Listener>()) {
  listener_->listening = listen_at(host);
  listener_->visits = std::move(visits);
  address_ = str(host, " ", listener_->listening.port, " ", listener_->word);
  listener_->thread = start_background_thread([listener = listener_.get()] { listener->run(); });
}

Acceptor::~Acceptor() {
  listener_->stop.wake();
  listener_->thread.join();
}

Door parse_door(const std::string& address) {
  Door door;
  std::istringstream(address) >> door.host >> door.port >> door.word;
  return door;
}

std::string greeting(const std::string& word, Purpose purpose, Rank from) {
  char rank[kRankDigits + 1];
  std::snprintf(rank, sizeof rank, "%0*d", static_cast<int>(kRankDigits), from.value);
  return str(word, static_cast<char>(purpose), rank);
}

}  // namespace penstock::comm
