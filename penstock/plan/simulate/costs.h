// What actions, messages and activations cost, for simulate.
//
// People write them on the command line or in a file; simulate reads them.  Plain numbers: where
// they were measured is not known here.
// Units: any; times share one, sizes share one, and a bandwidth is a size per time.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/verify/per_stage.h"
#include "penstock/schedule/schedule.h"

namespace penstock::simulate {

using verify::PerStage;

// What messages from one rank to another cost, where that differs from the other links.
struct Link {
  Rank from;
  Rank to;
  double latency = 0.0;
  std::optional<double> bandwidth = {};  // Absent: unlimited.
};

// What a pass takes, and what of it is exchanges that nothing hides.
struct PassCost {
  double time = 0.0;
  double exchange = 0.0;
};

struct Costs {
  PerStage forward = 1.0;  // F of one microbatch, with the exchanges inside of its layers.
  PerStage input = 1.0;    // I, with those of its gradients.
  PerStage weight = 1.0;   // W
  // B; absent: as I and W together, where W hides the exchanges of I.
  std::optional<PerStage> backward = {};
  // What F and I have to wait for exchanges, where nothing else runs beside them.  In an overlapped
  // pair each pass hides the other one's, as far as it computes so long.
  PerStage forward_exchange = 0.0;
  PerStage input_exchange = 0.0;
  // The same for B; absent: what W does not hide of I's.
  std::optional<PerStage> backward_exchange = {};
  double overlap = 1.0;  // An overlapped pair takes this share of that.

  double latency = 0.0;    // Time from the end of a message's transfer to its arrival.
  PerStage message = 0.0;  // Size of what a stage hands to the next one; its gradient's, too.
  std::optional<double> bandwidth = {};  // Bandwidth of each link; absent: unlimited.
  std::vector<Link> links = {};          // Exceptions from `latency` and `bandwidth`.

  PerStage gather = 0.0;  // UNSHARD, on the rank's gather stream.
  PerStage reduce = 0.0;  // REDUCE_GRAD, on the rank's reduce stream.
  // Update of the slowest rank, once all ranks have reduced their gradients.
  double optimizer = 0.0;

  PerStage activation = 1.0;  // What one microbatch takes from its F to its B or W.
  double keep = 1.0;          // Its share that a split backward keeps from the end of I to W.

  // The cost of a compute action, UNSHARD or REDUCE_GRAD; 0 for others.
  double of(const schedule::Action& action) const;
  // What of that is exchanges that nothing hides: of a B, what W does not; 0 for a W.
  double exchange_of(const schedule::Action& action) const;
  PassCost pass(const schedule::Action& action) const;
  bool has_exchanges() const;
};

// An F and the backward that runs with it.
struct PairCost {
  double forward = 0.0;  // Time of each, one behind the other, without what the other one hides.
  double backward = 0.0;
  double exchange = 0.0;  // What of both is exchanges that nothing hides.
};
PairCost cost_of_pair(const PassCost& forward, const PassCost& backward, double overlap);

// The same where all exchanges are hidden: what no order of passes can beat.
Costs without_exchanges(const Costs& costs);

// The numbers by stage that an order of computations depends on: all but gathers and reductions.
std::vector<const PerStage*> numbers_of_order(const Costs& costs);

// The costs of single stages, of those of a rank's stages together: each stage has an equal share.
Costs shared_by_stages(const Costs& of_rank, std::int32_t stages_per_rank);

// Everything takes that many times as long.  Law: so does every simulation (up to rounding).
Costs lengthened(const Costs& costs, double factor);

// Why the costs do not fit the schedule, each as "what: value; what was expected"; empty when they
// do.
std::vector<std::string> misfits(const Costs& costs, const schedule::Schedule& schedule);

}  // namespace penstock::simulate
