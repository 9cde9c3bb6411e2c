#include "penstock/comm/interrupt.h"

#include <utility>

#include "penstock/core/error.h"

namespace penstock::comm {

void Interrupt::raise(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (raised()) return;
  reason_ = reason;
  raised_.store(true, std::memory_order_release);
  for (const auto& wake : wakes_) wake();
  changed_.notify_all();
}

void Interrupt::check() const {
  if (!raised()) return;
  const std::lock_guard lock(mutex_);
  throw CommError(reason_);
}

void Interrupt::check_soon() const {
  constexpr std::chrono::milliseconds kMoment(300);
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kMoment, [this] { return raised(); });
  }
  check();
}

Interrupt::Waiting::Waiting(Interrupt& interrupt, std::function<void()> wake)
    : interrupt_(interrupt) {
  const std::lock_guard lock(interrupt_.mutex_);
  if (interrupt_.raised()) wake();
  place_ = interrupt_.wakes_.insert(interrupt_.wakes_.end(), std::move(wake));
}

Interrupt::Waiting::~Waiting() {
  const std::lock_guard lock(interrupt_.mutex_);
  interrupt_.wakes_.erase(place_);
}

}  // namespace penstock::comm
