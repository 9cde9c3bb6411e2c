// What the passes of a run's stages cost, to compare layouts on which it could go on.
//
// Knows no layouts.  Units: milliseconds where the run has measured, else passes of a stage.
#pragma once
#include <cstdint>
#include <string>

#include "penstock/plan/simulate/costs.h"
#include "penstock/schedule/schedule.h"
#include "penstock/verify/verify.h"

namespace penstock::choose {

// What the stage's first microbatch costs.
double of_stage(const verify::PerStage& costs, StageId stage);

class RunCosts {
 public:
  // Every pass of each of `stages` stages is as long as any other.
  explicit RunCosts(std::int32_t stages) : stages_(stages) {}
  // What the run in directory `run` has measured in its last window of steps, where it has, and the
  // stages are those of `order`; else as above.
  RunCosts(const std::string& run, const schedule::Schedule& order);

  bool is_measured() const { return is_measured_; }
  // Costs of the run's own stages.
  const simulate::Costs& costs() const { return costs_; }
  // The same work on so many stages: evenly, as a partition would have it.
  simulate::Costs on(std::int32_t stages) const;

 private:
  std::int32_t stages_;
  simulate::Costs costs_;
  bool is_measured_ = false;
};

}  // namespace penstock::choose
