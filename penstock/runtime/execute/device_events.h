// How far a device is with what its host has given it.
//
// A host may run a whole step ahead.  The Trainer then waits for the device here before it reads
// anything, so that each instruction that the device has done is progress, and the wait ends when
// the ranks are interrupted.  On a processor there is nothing to wait for.
// Thread safety: one thread at a time.
#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/execute/progress.h"

namespace c10 {
struct Event;
}

namespace penstock::execute {

// Waits on the host until a device has come to the event.
// Throws: CommError, when the ranks are interrupted.
void await_event(const c10::Event& event, const comm::Communicator& communicator);

class DeviceEvents {
 public:
  explicit DeviceEvents(c10::Device device);
  ~DeviceEvents();

  // Marks the place behind all that this thread has given the device's current stream, in a step;
  // marks of another step, for which nobody has waited, are forgotten.
  void mark(std::int64_t step);
  // Waits for the marks, one after the other; each is a progress.
  // Throws: CommError, when the ranks are interrupted.
  void await(Progress& progress, const comm::Communicator& communicator);

 private:
  c10::Device device_;
  std::vector<std::unique_ptr<c10::Event>> events_;  // Made once.
  std::size_t marked_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace penstock::execute
