// When each compute action of a verified schedule would run, given what actions cost.
//
// render draws the result; people compare schedules with it.  Exact for the model it has: a rank
// runs its compute actions strictly in order, an action starts when its rank is free and its inputs
// are there, a value that crosses ranks takes `latency`, links are unlimited.  An overlapped pair
// starts when both can, takes as long as both, and hands on what it made at its end.
// Cost: linear in the number of actions.
// Units: any; times and costs share one.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/verify/verify.h"

namespace penstock::simulate {

// A number for each stage, or one for all of them.
class PerStage {
 public:
  PerStage(double all) : values_{all} {}  // NOLINT(google-explicit-constructor): costs read so.
  PerStage(std::vector<double> by_stage) : values_(std::move(by_stage)) {}  // NOLINT: as above.

  double at(StageId stage) const { return values_[values_.size() == 1 ? 0 : stage.index()]; }
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
};

struct Costs {
  PerStage forward = 1.0;            // F of one microbatch.
  PerStage input = 1.0;              // I
  PerStage weight = 1.0;             // W
  std::optional<PerStage> backward;  // B; absent: as I and W together.
  double latency = 0.0;              // From the end of a producer to the arrival on another rank.
  PerStage activation = 1.0;         // Memory of one microbatch from its F to its B or W.
  double keep = 1.0;                 // Its share that a split backward keeps from I to W.

  double of(const schedule::Action& action) const;
};

struct Event {
  Rank rank;
  schedule::Action action;
  double start = 0.0;
  double end = 0.0;
};

struct Simulation {
  double makespan = 0.0;
  std::vector<double> busy;         // By rank: the sum of its actions' costs.
  std::vector<double> span;         // By rank: from its first start to its last end.
  std::vector<double> peak_memory;  // By rank: most activation memory at once.
  std::vector<Event> events;        // By rank, in program order; of a pair, F before B.
};

// REQUIRES: costs are finite and not negative, one or one for each stage; keep is in [0, 1].
Simulation simulate(const verify::VerifiedSchedule& schedule, const Costs& costs = {});

}  // namespace penstock::simulate
