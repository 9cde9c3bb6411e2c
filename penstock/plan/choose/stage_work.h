// The work of one stage on one rank: what its passes take, and the bytes that it sums and gathers.
//
// Step times are made of it.  Knows no links and no schedule.
// Units: seconds, bytes.
#pragma once
#include "penstock/plan/choose/step_end.h"
#include "penstock/plan/choose/step_time.h"

namespace penstock::choose {

// What is summed and gathered of a stage's parameters, in bytes.
struct Shared {
  double parameters = 0.0;
  double gradients = 0.0;
  double states = 0.0;     // Whole; ranks may have shares of them.
  double last_sum = 0.0;   // The bucket that leaves last.
  double buckets = 0.0;    // Number of buckets of gradients.
  double in_bucket = 0.0;  // What the last bucket has so far.

  void add(const memory::Parameter& parameter, double bucket);
};

// The work of one stage: what its passes take, with what is computed again, and its bytes.
struct StageWork {
  LayerTimes times;
  devices::KernelSeconds kernels;  // Kernels of all passes.
  double output = 0.0;             // Bytes of a microbatch.
  AxisWait context;                // Exchanges of a microbatch.
  AxisWait in_experts;             // The same.
  Shared others;
  Shared experts;
  StepEnd end;
};

StageWork work_of(const StepInputs& inputs, StageId stage);

}  // namespace penstock::choose
