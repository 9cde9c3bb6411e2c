#include "penstock/runtime/execute/device_events.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>
#include <utility>

namespace penstock::execute {
namespace {

// The time of a short kernel: a wait of a step costs no more than one.
constexpr std::chrono::microseconds kBetweenLooks{20};

}  // namespace

void await_event(const c10::Event& event, const comm::Communicator& communicator) {
  while (!event.query()) {
    communicator.check_interrupt();
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

DeviceEvents::DeviceEvents(c10::Device device) : device_(device) {}

DeviceEvents::~DeviceEvents() = default;

void DeviceEvents::mark(std::int64_t step) {
  if (device_.is_cpu()) return;
  if (std::exchange(step_, step) != step) marked_ = 0;
  if (marked_ == events_.size()) events_.push_back(std::make_unique<c10::Event>(device_.type()));
  const c10::impl::VirtualGuardImpl guard(device_.type());
  events_[marked_++]->record(guard.getStream(device_));
}

void DeviceEvents::await(Progress& progress, const comm::Communicator& communicator) {
  for (std::size_t i = 0; i < marked_; ++i) {
    await_event(*events_[i], communicator);
    progress.advance();
  }
  marked_ = 0;
}

}  // namespace penstock::execute
