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

struct Costs {
  PerStage forward = 1.0;                 // F of one microbatch.
  PerStage input = 1.0;                   // I
  PerStage weight = 1.0;                  // W
  std::optional<PerStage> backward = {};  // B; absent: as I and W together.
  double overlap = 1.0;                   // An overlapped pair takes this share of its F and B.

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
};

// The costs of single stages, of those of a rank's stages together: each stage has an equal share.
Costs shared_by_stages(const Costs& of_rank, std::int32_t stages_per_rank);

// Everything takes that many times as long.  Law: so does every simulation (up to rounding).
Costs lengthened(const Costs& costs, double factor);

// Why the costs do not fit the schedule, each as "what: value; what was expected"; empty when they
// do.
std::vector<std::string> misfits(const Costs& costs, const schedule::Schedule& schedule);

}  // namespace penstock::simulate
