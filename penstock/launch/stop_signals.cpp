#include "penstock/launch/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <ctime>

#include "penstock/core/check.h"

namespace penstock::launch {
namespace {

// A handler reaches nothing else.
std::atomic<bool> is_installed{false};
std::atomic<int> first_signal{0};
std::atomic<long> first_ms{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<long>::is_always_lock_free);

int code_of(int signal) {
  return static_cast<int>(signal == SIGINT ? ExitCode::Interrupted : ExitCode::Preempted);
}

long now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<long>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

// Async-signal-safe calls only.
void note_stop(int signal) {
  const long now = now_ms();
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    first_ms.store(now);
  } else if (first_ms.load() > 0 && now - first_ms.load() >= StopSignals::kSameStopMs) {
    ::_exit(code_of(first_signal.load()));
  }
}

}  // namespace

StopSignals::StopSignals() {
  PENSTOCK_CHECK(!is_installed.exchange(true), "two handlers of signals in one process");
  first_signal.store(0);
  first_ms.store(0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    Saved saved{signal, {}};
    ::sigaction(signal, nullptr, &saved.action);
    if (saved.action.sa_handler == SIG_IGN) continue;
    struct sigaction action{};
    action.sa_handler = note_stop;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
    saved_.push_back(saved);
  }
}

StopSignals::~StopSignals() {
  for (const Saved& saved : saved_) ::sigaction(saved.signal, &saved.action, nullptr);
  first_signal.store(0);
  is_installed.store(false);
}

std::optional<int> StopSignals::noted() {
  const int signal = first_signal.load(std::memory_order_relaxed);
  return signal == 0 ? std::nullopt : std::optional(signal);
}

std::optional<ExitCode> StopSignals::requested() const {
  const auto signal = noted();
  return signal ? std::optional(static_cast<ExitCode>(code_of(*signal))) : std::nullopt;
}

}  // namespace penstock::launch
