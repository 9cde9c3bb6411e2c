// The learning rate of each step, as a share of the optimizer's own.
//
// The Trainer asks before each of its updates.  penstock.lr_schedules asks through the bindings: it
// has the same curve one step later, as DeepSpeed has.
// Units: steps of the optimizer, from 0; a step that was skipped for an overflow does not count.
// Source: deepspeed.runtime.lr_schedules, which takes step i with the rate of i - 1; of the cosine:
// Loshchilov and Hutter, SGDR, arXiv 1608.03983, one cycle.
#pragma once
#include <cstdint>

#include "penstock/config/config.h"

namespace penstock::config {

// A warmup is at least so long.
inline constexpr std::int64_t kWarmupStepsMin = 2;

// The share from 0 at step 0 to 1 at step `steps`; a logarithmic one is there one step earlier.
double warmup_share(WarmupType type, std::int64_t step, std::int64_t steps);

// Constant: 1.  WarmupCosine: from warmup_min_ratio along warmup_share() to 1, in warmup_num_steps
// steps; then along half a cosine to cos_min_ratio, which it has from step total_num_steps - 1 on.
// steps_of_run: what total_num_steps is where it is absent.
double learning_rate_share(const SchedulerConfig& scheduler, std::int64_t step,
                           std::int64_t steps_of_run);

}  // namespace penstock::config
