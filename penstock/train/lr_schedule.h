// The learning rate of each step: constant, or linear warm-up followed by a cosine.
//
// The trainer asks before every optimizer step.  Source of the cosine: Loshchilov and Hutter, SGDR,
// arXiv 1608.03983, one cycle; the field names are DeepSpeed's WarmupCosineLR.
#pragma once
#include <cstdint>

#include "penstock/config/config.h"

namespace penstock::train {

// The factor on optimizer.lr at `step`, counted from 1, of `total_steps`.
// Warm-up: from warmup_min_ratio to 1 in warmup_num_steps steps, reached at that step.  Then a
// cosine from 1 down to cos_min_ratio, reached at the last step and kept.
double lr_factor(const config::SchedulerConfig& scheduler, std::int64_t step,
                 std::int64_t total_steps);

}  // namespace penstock::train
