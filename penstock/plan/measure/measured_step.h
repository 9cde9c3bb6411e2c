// One recorded step of one replica in the terms of a simulation: when each computation began, how
// long it held its rank, and how long the rank had waited for its input.
//
// fit.h takes costs from it, drift.h compares it, render/ draws it.  A computation *holds* its rank
// for its own time and for what the rank then does without waiting: posting messages, releasing
// buffers, the executor's own work.  In a simulation all that takes no time, so it has to be part
// of what the computation costs.
// Units: milliseconds since the step's first event among the ranks with the same clock.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/plan/measure/recording.h"
#include "penstock/verify/verify.h"

namespace penstock::measure {

struct Computation {
  schedule::Action action;
  double wait = 0.0;   // Wait for its input, before `start`.
  double start = 0.0;  // Its input is there.
  double own = 0.0;    // Time of the computation itself.
  double hold = 0.0;   // Time for which it holds its rank: at least `own`.
  double end() const { return start + hold; }
};

struct Message {
  schedule::Action send;
  std::int64_t bytes = 0;
  // The time from the end of its SEND to the receiver's end of waiting.  Known where the receiver
  // was waiting already when the SEND ended, and has the same clock.
  std::optional<double> time = {};
};

// What was left to reduce when a rank had computed.
struct Reduction {
  schedule::Action action;  // The rank's last REDUCE_GRAD.
  double start = 0.0;
  double end = 0.0;  // End of the step on that rank.
};

// An exchange with the ranks that share layers.
struct ExchangeTimes {
  std::string name;
  double start = 0.0;
  double begun = 0.0;    // The rank computed from here on, beside it.
  double awaited = 0.0;  // The rank needed its result.
  double end = 0.0;
  std::optional<schedule::Action> action = {};  // It asked for this; older files do not say.
  double held() const { return (begun - start) + (end - awaited); }
  double beside() const { return awaited - begun; }
};

// What one rank computed in one step, as it ran; starts are since `origin_ns`.
std::vector<Computation> computations_of(std::span<const Event> events, std::int64_t origin_ns);

struct MeasuredStep {
  std::int64_t step = 0;
  std::vector<std::vector<Computation>> computations;  // Computations by pipe rank, as they ran.
  std::vector<std::vector<ExchangeTimes>> exchanges;   // Exchanges by pipe rank, as they ended.
  // Reductions by pipe rank; none with one replica.
  std::vector<std::optional<Reduction>> reductions;
  std::vector<Message> messages;  // Messages by sender, as they set out.
  double makespan = 0.0;          // Time to the end of the last rank.
  bool has_exchanges() const {
    return std::ranges::any_of(exchanges, [](const auto& of_rank) { return !of_rank.empty(); });
  }
};

// Throws: ScheduleError when some rank did not run its row of the schedule, the schedule is none
// that trains (with backwards, and messages between its ranks), or nothing in the step took time.
// REQUIRES: `step` is one of steps_of(recording), `replica` is one of replicas().
MeasuredStep measured_step(const Recording& recording, const verify::VerifiedSchedule& schedule,
                           std::int64_t step, std::int32_t replica);

// How many replicas of the pipeline there are.
std::int32_t replicas(const Recording& recording);

// Whether all ranks of a replica have the same clock.
bool is_one_clock(const Recording& recording, std::int32_t replica);

}  // namespace penstock::measure
