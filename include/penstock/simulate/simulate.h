// Simulates a verified schedule: when each action would run, given what actions cost.
//
// render draws the result; people compare schedules with it.  Exact for the model it has:
//
// - A rank runs its compute actions strictly in order; an action starts when its rank is free and
//   its inputs are there.  An overlapped pair starts when both can, and hands on at its end.
// - Exchanges inside of a pass's layers are a part of its time (Costs::forward_exchange).  In a
//   pair, what one pass computes hides those of the other.
// - In a schedule without messages, a value that crosses ranks sets out when it is made.  In a
//   schedule with messages, SEND and RECV only post (or, blocking, end with the message), and a
//   message sets out when both ends are posted and its channel lets it: under the rules that the
//   schedule was verified with, by the code that verified it.
// - A message takes its size over the link's bandwidth, and arrives a latency later.  A link from
//   one rank to another with a bandwidth carries one message at a time, in the order in which they
//   could set out.  In pairfifo and rankfifo channels the next message waits for the arrival.
// - UNSHARD and REDUCE_GRAD occupy their rank's gather and reduce streams, one at a time, beside
//   the compute; a stage computes when its gather is over.  RESHARD takes no time.
// - The optimizer runs once everything else is over on all ranks.
//
// Cost: linear in the number of actions (with a bandwidth: times the logarithm of the messages that
// wait for links at once).
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/verify/verify.h"

namespace penstock::simulate {

struct Event {
  Rank rank;  // The receiver of a message; else the rank that acts.
  schedule::Action action;
  double start = 0.0;
  double end = 0.0;
  double waited = 0.0;  // How long its rank, free before `start`, waited.
  // What came last of what it needed, where it waited: an action of another rank (the F, B or I
  // that makes its input; with messages, the SEND), or the UNSHARD of its stage.
  std::optional<schedule::Action> awaited = {};
};

// All the waits of one rank for one kind of action of one rank.
struct Wait {
  Rank rank;
  schedule::Op op = schedule::Op::Forward;  // What was waited for.
  Rank peer;                                // Whose.
  double time = 0.0;
  std::int64_t count = 0;
};

struct MemoryPoint {
  double time = 0.0;
  double memory = 0.0;  // Memory from `time` on.
};

enum class Detail : std::uint8_t {
  Totals,  // Numbers by rank.
  Events,  // Numbers, and everything that happened.
};

struct Simulation {
  double makespan = 0.0;     // Time to the end of the last action, and the optimizer.
  std::vector<double> busy;  // Sum of each rank's compute actions' times.
  // What of that is exchanges inside of layers, which nothing hides.
  std::vector<double> exchange;
  std::vector<double> span;                    // Time from each rank's first start to its last end.
  std::vector<std::int32_t> peak_activations;  // Most live activations at once, by rank.
  std::vector<double> peak_memory;             // Most that they take, by rank.
  std::vector<std::int32_t> unshard_peak;      // Most stages unsharded at once, by rank.
  std::vector<Wait> waits;                     // Waits by rank, the longest first.

  // The following are empty without Detail::Events.
  std::vector<Event> events;     // F, B, I and W, by rank, in program order; of a pair, F before B.
  std::vector<Event> transfers;  // Messages, each as its SEND.
  std::vector<Event> streams;    // UNSHARD and REDUCE_GRAD, by rank, in program order.
  std::vector<std::vector<MemoryPoint>> memory;  // Memory of live activations over time, by rank.
  // What the makespan is made of: events of all three kinds from time 0 on, each of which could not
  // start before the one ahead of it; the optimizer follows the last.
  std::vector<Event> critical_path;

  // Share of the makespan that a rank does not compute, or all ranks together; 0 where nothing
  // takes time, here and below.
  double bubble(Rank rank) const;
  double mean_bubble() const;
  // The same of the longest span, against the busiest rank: what counts where steps follow each
  // other without a barrier.
  double span_bubble() const;
};

// Throws: ConfigError for costs that do not fit the schedule.
Simulation simulate(const verify::VerifiedSchedule& schedule, const Costs& costs = {},
                    Detail detail = Detail::Events);

}  // namespace penstock::simulate
