// Recordings of steps that went exactly as a simulation says: what a fit has to find its costs in.
//
// Knows nothing of measure/ but the recording itself.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "penstock/plan/measure/recording.h"
#include "penstock/simulate/simulate.h"

namespace penstock::testing_support {

inline std::int64_t to_ns(double ms) { return std::llround(ms * 1e6); }

// What rank `rank` did in a step that began at `origin_ns`: posting takes no time.
inline void append_rank(measure::Recording& recording, const verify::VerifiedSchedule& schedule,
                        const simulate::Costs& costs, const simulate::Simulation& simulation,
                        std::int64_t step, Rank rank, std::int64_t origin_ns) {
  auto computed = simulation.events.begin();
  while (computed != simulation.events.end() && computed->rank != rank) ++computed;
  std::int64_t now = origin_ns;
  for (const schedule::Action& action : schedule.schedule().programs[rank.index()]) {
    measure::Event event{.step = step, .rank = rank, .action = action};
    event.action.overlaps_next = false;
    event.start_ns = event.ready_ns = event.end_ns = now;
    if (schedule::is_compute(action.op)) {
      event.ready_ns = origin_ns + to_ns(computed->start);
      event.end_ns = origin_ns + to_ns(computed->end);
      ++computed;
    } else if (schedule::is_send(action.op)) {
      const bool forward = action.op == schedule::Op::SendForward;
      const StageId hop(action.stage.value - (forward ? 0 : 1));
      event.bytes = std::llround(costs.message.at(hop, *action.microbatch));
    }
    recording.events.push_back(event);
    now = event.end_ns;
  }
  recording.events.push_back({.step = step,
                              .rank = rank,
                              .what = measure::What::Finish,
                              .start_ns = now,
                              .ready_ns = now,
                              .end_ns = now});
}

// One replica, one clock; a step for each of `steps`.
// REQUIRES: the schedule has its messages; all costs are whole nanoseconds.
inline measure::Recording recording_of(const verify::VerifiedSchedule& schedule,
                                       const std::vector<simulate::Costs>& steps) {
  const std::int32_t ranks = schedule.schedule().ranks();
  measure::Recording recording{.schedule = "recorded"};
  std::vector<simulate::Simulation> simulations;
  for (const simulate::Costs& costs : steps) {
    simulations.push_back(simulate::simulate(schedule, costs));
  }
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    recording.ranks.push_back({.at = {.pipe = rank}, .clock = 7});
    std::int64_t origin_ns = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      append_rank(recording, schedule, steps[i], simulations[i], static_cast<std::int64_t>(i) + 1,
                  Rank(rank), origin_ns);
      origin_ns += to_ns(simulations[i].makespan) + 1000;
    }
  }
  return recording;
}

inline measure::Recording recording_of(const verify::VerifiedSchedule& schedule,
                                       const simulate::Costs& costs) {
  return recording_of(schedule, std::vector{costs});
}

}  // namespace penstock::testing_support
