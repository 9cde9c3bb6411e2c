#include "penstock/runtime/execute/braided_events.h"

#include <algorithm>

namespace penstock::execute {

void BraidedEvents::part(std::vector<Event>& events, const StepClock& clock) const {
  Event& first = events[first_];
  Event& second = events[first_ + 1];
  const auto turn = [&](std::size_t i) { return clock.ns(turns_[i]); };
  const std::int64_t waited = std::max<std::int64_t>(second.ready_ns - turn(1), 0);
  first.start_ns = turn(0);
  first.end_ns = first.start_ns;
  for (std::size_t i = 0; i + 1 < turns_.size(); i += 2) first.end_ns += turn(i + 1) - turn(i);
  first.ready_ns = std::clamp(first.ready_ns, first.start_ns, first.end_ns);
  second.start_ns = first.end_ns;
  second.end_ns = turn(turns_.size() - 1);
  second.ready_ns = std::min(second.start_ns + waited, second.end_ns);
}

}  // namespace penstock::execute
