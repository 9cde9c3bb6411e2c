#include "penstock/runtime/run/injected_faults.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <iterator>
#include <string>
#include <thread>

#include "penstock/core/error.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"

namespace penstock::run {
namespace {

using inject::Fault;

// Raises a signal, by a timer of the system's: it comes in the midst of what the process does then.
void signal_after(int number, double seconds) {
  if (seconds <= 0) {
    ::raise(number);
    return;
  }
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = number;
  timer_t timer{};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
    throw Error("cannot make a timer for an injected fault");
  }
  const double whole = std::floor(seconds);
  constexpr double kNanoseconds = 1e9;
  itimerspec when{};
  when.it_value.tv_sec = static_cast<std::time_t>(whole);
  when.it_value.tv_nsec = static_cast<long>((seconds - whole) * kNanoseconds) + 1;
  when.it_value.tv_nsec = std::min(when.it_value.tv_nsec, 999'999'999L);
  ::timer_settime(timer, 0, &when, nullptr);
}

// Writes at once: the process may be gone in a moment.
void say(const std::string& text) {
  const std::string line = str("penstock: ", text, "\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

InjectedFaults::InjectedFaults(const std::vector<Fault>& faults, Rank rank, std::int64_t start,
                               execute::Progress& progress)
    : progress_(progress) {
  std::ranges::copy_if(faults, std::back_inserter(pending_), [&](const Fault& fault) {
    return fault.rank == rank && fault.start == start;
  });
  if (pending_.empty()) return;
  std::ranges::copy_if(pending_, std::back_inserter(slow_),
                       [](const Fault& fault) { return fault.kind == Fault::Kind::Slow; });
  progress_.arrived = [this](std::string_view place) { arrived(place); };
  if (!slow_.empty()) progress_.ran = [this](std::string_view action) { ran(action); };
}

InjectedFaults::~InjectedFaults() {
  progress_.arrived = nullptr;
  progress_.ran = nullptr;
}

void InjectedFaults::ran(std::string_view action) {
  const std::int64_t step = progress_.step.load(std::memory_order_relaxed);
  for (const Fault& fault : slow_) {
    if (!inject::is_slow_in(fault, step) || !is_at(fault, action)) continue;
    std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
  }
}

void InjectedFaults::arrived(std::string_view place) {
  const std::int64_t step = progress_.step.load(std::memory_order_relaxed);
  const auto is_here = [&](const Fault& fault) {
    const bool is_step = fault.kind == Fault::Kind::Slow ? inject::is_slow_in(fault, step)
                                                         : !fault.step || *fault.step == step;
    return is_at(fault, place) && is_step;
  };
  std::vector<Fault> here;
  std::ranges::copy_if(pending_, std::back_inserter(here), is_here);
  if (here.empty()) return;
  std::erase_if(pending_, is_here);
  // What ends all comes last.
  std::ranges::stable_partition(here, [](const Fault& fault) {
    return fault.kind == Fault::Kind::Delay || fault.kind == Fault::Kind::Slow ||
           fault.kind == Fault::Kind::NoSpace;
  });
  for (const Fault& fault : here) happen(fault, place);
}

void InjectedFaults::happen(const Fault& fault, std::string_view place) {
  const std::int64_t step = progress_.step.load(std::memory_order_relaxed);
  say(str("injected: ", to_string(fault), ", at \"", place, "\"",
          step > 0 ? str(" of step ", step) : ""));
  switch (fault.kind) {
    case Fault::Kind::Kill:
      return signal_after(SIGKILL, fault.seconds);
    case Fault::Kind::Stop:
      return signal_after(SIGSTOP, fault.seconds);
    case Fault::Kind::Delay:
      return std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
    case Fault::Kind::Slow:
      return;  // Slowed by ran(), which is called from now on.
    case Fault::Kind::Exception:
      throw Error(str("an injected exception (", to_string(fault), ")"));
    case Fault::Kind::NoSpace:
      return fail_next_write(ENOSPC);
  }
}

void InjectedFaults::finish() const {
  for (const Fault& fault : pending_) {
    say(str("not injected: ", to_string(fault), ": the rank never came there"));
  }
}

}  // namespace penstock::run
