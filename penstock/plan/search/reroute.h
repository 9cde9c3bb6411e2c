// Two ways in which replicas of a pipeline go on without some of their ranks, with all microbatches
// of a step.
//
// reroute(): the microbatches of a lost rank pass its stages on ranks of other replicas that hold
// the same stages.  They pass all other stages where they did.  Ranks that wait much in the
// schedule have time for it. reshard(): whole pipelines are made of the ranks that are left, and
// get all microbatches.  Each is the fastest order that is found in a memory, by the parts of a
// search, so that their times can be compared.  What either has to move before its first step,
// weights and states, is not counted.
// Units: those of simulate::Costs.
// Source: Gandhi et al., ReCycle, arXiv 2405.14009: peers take over microbatches in their bubbles,
// and weight gradients are delayed for it.  There a solver places the actions; here list schedules
// and random repairs do.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/mesh/mesh.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"

namespace penstock::search {

struct LostRanks {
  const verify::VerifiedSchedule& schedule;  // Each replica's schedule; its messages are not read.
  std::int32_t replicas = 2;
  std::vector<Rank> lost;                 // Ranks of mesh_of().
  simulate::Costs costs;                  // Costs of that schedule.
  std::optional<double> memory_max = {};  // Absent: as much as its fullest rank has.
};

// The mesh of all replicas of its pipe.
// REQUIRES: replicas of 1 or more.
mesh::Mesh mesh_of(const LostRanks& loss);

// A schedule of the ranks that are left, and how long its step is.
struct RemainingRun {
  verify::VerifiedSchedule schedule;
  simulate::Costs costs;  // Costs of `schedule`.
  simulate::Simulation simulation;
};

// One program of all ranks that are left, in their order.  Microbatch m of replica k has the number
// m x replicas + k.  Of the microbatches that pass a stage elsewhere, each rank with the stage gets
// as many as any other, or one more.
// Throws: ConfigError for what is wrong with the loss, here and below; Infeasible where all ranks
// of a stage are lost, or the memory is too small.
RemainingRun reroute(const LostRanks& loss);

struct Resharded {
  std::int32_t replicas = 0;  // Whole pipelines of the ranks that are left; the others are idle.
  std::int32_t microbatches = 0;  // Microbatches of the replica that gets most.
  RemainingRun remaining;         // The same replica's schedule and simulation.
};
// Absent: the ranks that are left are too few for a pipeline.
std::optional<Resharded> reshard(const LostRanks& loss);

// The ranks that are left, in their order, by their old numbers.
std::vector<Rank> left_of(const LostRanks& loss);

}  // namespace penstock::search
