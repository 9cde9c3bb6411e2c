// What a rank's device does with gradients besides the backward that makes them: it adds them up,
// takes their norm, and updates parameters.
//
// Step times are made of it.  It launches what parameters/ and update/ launch, kernel by kernel;
// tests/process/emulate_test.py compares the two.  A kernel takes the bytes that it touches.
// Knows no stages and no schedule.
// Units: seconds, bytes.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/partition/ownership.h"
#include "penstock/plan/memory/states.h"

namespace penstock::choose {

// What a device reaches for its memory.
struct MemorySpeed {
  double bytes_per_s = 0.0;  // 0: not known, and nothing takes time.
  double kernel_s = 0.0;     // The least that a kernel takes.
};

struct StepEnd {
  // What the first backward of a step takes more, or less, than one that adds each gradient to what
  // is there; and what the later ones do.
  double first_backward = 0.0;
  double later_backward = 0.0;
  double in_backward = 0.0;  // Gradients go to buckets, and summands of others are added.
  double after_sums = 0.0;   // Summands that are only added when the last backward is over.
  double update = 0.0;       // The norm, and the update.

  StepEnd& operator+=(const StepEnd& more);
};

// What the parameters of one rank take, in a step of so many microbatches.
StepEnd step_end(const std::vector<const partition::Parameter*>& parameters,
                 const memory::Sharing& sharing, std::int32_t microbatches,
                 const MemorySpeed& speed);

// The same of a program that is not penstock's, whose kernels are fused: products add to the sums
// of gradients, one kernel takes the norm of a gradient, and one updates a parameter.
StepEnd fused_step_end(const std::vector<const partition::Parameter*>& parameters,
                       const memory::Sharing& sharing, const MemorySpeed& speed);

}  // namespace penstock::choose
