// Times of a recorded step, by the clock of what computes: the host, or its device.
//
// A host gives its device work ahead of time, so the host's clock says nothing of that work.  There
// a time is a mark: an event behind what the device has been given by then.  When the step is over,
// each mark is a time.
// Units: nanoseconds of the host's steady clock; the device's clock begins with the step.
// Thread safety: several threads may mark.
#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "penstock/comm/communicator.h"

namespace c10 {
struct Event;
}

namespace penstock::execute {

// Nanoseconds.
using HostClock = std::function<std::int64_t()>;

class StepClock {
 public:
  explicit StepClock(c10::Device device);
  ~StepClock();

  // Begins a step: the device is done with all before it.  `host`: the steady clock, or one in its
  // place.
  void begin(const HostClock& host);
  // Returns the time on a processor; on a device the name of a mark of this step.
  std::int64_t mark();
  // Waits until the device has come to the last mark.
  // Throws: CommError, when the ranks are interrupted.
  void end(const comm::Communicator& communicator);
  // The time of a mark.  REQUIRES: the step has ended.
  std::int64_t ns(std::int64_t mark) const;

 private:
  c10::Device device_;
  HostClock host_;
  std::int64_t origin_ns_ = 0;
  std::mutex marking_;
  std::vector<std::unique_ptr<c10::Event>> events_;  // Made once; the first is the origin.
  std::size_t marked_ = 0;
};

}  // namespace penstock::execute
