#include "penstock/runtime/execute/step_clock.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>

#include "penstock/runtime/execute/device_events.h"

namespace penstock::execute {
namespace {

constexpr double kNanosecondsPerMillisecond = 1e6;

}  // namespace

StepClock::StepClock(c10::Device device) : device_(device) {}

StepClock::~StepClock() = default;

void StepClock::begin(const HostClock& host) {
  host_ = host;
  marked_ = 0;
  if (device_.is_cpu()) return;
  mark();
  events_.front()->synchronize();
  origin_ns_ = host_();
}

std::int64_t StepClock::mark() {
  if (device_.is_cpu()) return host_();
  const std::scoped_lock lock(marking_);
  if (marked_ == events_.size()) {
    // Events of the other kind have no time.
    events_.push_back(
        std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
  }
  const c10::impl::VirtualGuardImpl guard(device_.type());
  events_[marked_]->record(guard.getStream(device_));
  return static_cast<std::int64_t>(marked_++);
}

void StepClock::end(const comm::Communicator& communicator) {
  if (device_.is_cpu()) return;
  mark();
  await_event(*events_[marked_ - 1], communicator);
}

std::int64_t StepClock::ns(std::int64_t mark) const {
  if (device_.is_cpu()) return mark;
  const double since_ms = events_.front()->elapsedTime(*events_[static_cast<std::size_t>(mark)]);
  return origin_ns_ + std::llround(since_ms * kNanosecondsPerMillisecond);
}

}  // namespace penstock::execute
