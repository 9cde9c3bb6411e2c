#include "penstock/plan/simulate/record.h"

#include <algorithm>

namespace penstock::simulate {

Moment Record::add(Kind kind, const Event& event, EventId cause) {
  if (!keeps_) return {event.end, kNoEvent};
  entries_.push_back({event, cause, kind});
  return {event.end, static_cast<EventId>(entries_.size() - 1)};
}

void Record::hand_over(EventId last, Simulation& simulation) {
  for (EventId at = last; at != kNoEvent; at = entries_[at].cause) {
    simulation.critical_path.push_back(entries_[at].event);
  }
  std::ranges::reverse(simulation.critical_path);
  for (const Entry& entry : entries_) {
    switch (entry.kind) {
      case Kind::Compute:
        simulation.events.push_back(entry.event);
        break;
      case Kind::Transfer:
        simulation.transfers.push_back(entry.event);
        break;
      case Kind::Stream:
        simulation.streams.push_back(entry.event);
        break;
    }
  }
  // What happens on one rank is entered in program order.
  std::ranges::stable_sort(simulation.events, {}, &Event::rank);
  std::ranges::stable_sort(simulation.streams, {}, &Event::rank);
  std::ranges::stable_sort(simulation.transfers, {}, &Event::start);
}

}  // namespace penstock::simulate
