// The recorded events of a pair that ran braided (braid.h): one behind the other, each as long as
// its half ran.
//
// The executor makes one for each pair of a recorded step; a recording's events may not cross.
// Units: marks of the step's clock, until they become nanoseconds (step_clock.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/execute/step_clock.h"

namespace penstock::execute {

class BraidedEvents {
 public:
  // `first`: the place of the F's event, which the backward's follows.
  explicit BraidedEvents(std::size_t first) : first_(first) {}

  // The pair begins, changes from one half to the other, or ends.
  void turn(std::int64_t mark) { turns_.push_back(mark); }

  // Gives both events their times.  REQUIRES: those that they have are nanoseconds.
  void part(std::vector<Event>& events, const StepClock& clock) const;

 private:
  std::size_t first_;
  std::vector<std::int64_t> turns_;
};

}  // namespace penstock::execute
