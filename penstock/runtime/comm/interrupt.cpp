#include "penstock/runtime/comm/interrupt.h"

#include <utility>

#include "penstock/core/error.h"

namespace penstock::comm {

void Interrupt::raise(const std::string& reason, Kind kind) {
  const std::lock_guard lock(mutex_);
  if (kind == Kind::End) kind_ = Kind::End;
  if (raised()) return;
  reason_ = reason;
  raised_.store(true, std::memory_order_release);
  for (const auto& wake : wakes_) wake();
  changed_.notify_all();
}

void Interrupt::announce(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  announced_ = reason;
  changed_.notify_all();
}

bool Interrupt::is_failure() const {
  const std::lock_guard lock(mutex_);
  return raised() && kind_ == Kind::Failure;
}

std::string Interrupt::clear() {
  const std::lock_guard lock(mutex_);
  raised_.store(false, std::memory_order_release);
  announced_.clear();
  return std::exchange(reason_, "");
}

void Interrupt::check() const {
  if (!raised()) return;
  const std::lock_guard lock(mutex_);
  throw CommError(reason_);
}

void Interrupt::check_soon() {
  constexpr std::chrono::milliseconds kMoment(300);
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kMoment, [this] { return raised() || !announced_.empty(); });
  }
  if (!announced().empty()) raise(announced(), Kind::Failure);
  check();
}

std::string Interrupt::announced() const {
  const std::lock_guard lock(mutex_);
  return announced_;
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
