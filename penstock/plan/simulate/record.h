// The events of a simulation, and which of them each had to wait for last.
//
// simulate writes it as things happen, and reads off the critical path at the end.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/simulate/simulate.h"

namespace penstock::simulate {

using EventId = std::uint32_t;
inline constexpr EventId kNoEvent = static_cast<EventId>(-1);

// A time, and the event that ends then.
struct Moment {
  double time = 0.0;
  EventId cause = kNoEvent;

  void wait_for(const Moment& other) {
    if (other.time > time) *this = other;
  }
};

class Record {
 public:
  enum class Kind : std::uint8_t { Compute, Transfer, Stream };

  explicit Record(Detail detail) : keeps_(detail == Detail::Events) {}

  bool keeps() const { return keeps_; }

  // Returns the end of the event.  `cause` is what it had to wait for last.
  Moment add(Kind kind, const Event& event, EventId cause);

  // Moves the events into `simulation`, with the path that ends at `last`.
  void hand_over(EventId last, Simulation& simulation);

 private:
  struct Entry {
    Event event;
    EventId cause = kNoEvent;
    Kind kind = Kind::Compute;
  };
  bool keeps_;
  std::vector<Entry> entries_;
};

}  // namespace penstock::simulate
