// The learning rate of each step, as a share of the optimizer's own.
//
// The Trainer asks before each of its updates.  penstock.lr_schedules asks through the bindings: it
// has the same curve one step later, as DeepSpeed has.
// Units: steps of the optimizer, from 0; a step that was skipped for an overflow does not count.
// Source: for WarmupCosine deepspeed.runtime.lr_schedules, which takes step i with the rate of
// i - 1; for the others get_scheduler() of transformers 5.  Cosine: Loshchilov and Hutter, SGDR,
// arXiv 1608.03983, one cycle; WSD: Hu et al., MiniCPM, arXiv 2404.06395.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "penstock/config/config.h"

namespace penstock::config {

// A warmup is at least so long.
inline constexpr std::int64_t kWarmupStepsMin = 2;

// The share from 0 at step 0 to 1 at step `steps`; a logarithmic one is there one step earlier.
double warmup_share(WarmupType type, std::int64_t step, std::int64_t steps);

// The steps that `amount` says: of `total` where it is a share, rounded up.
std::int64_t steps_of(double amount, std::int64_t total);

// Whether the curve ends with the run: it has another length where that has.
bool ends_with_run(const SchedulerConfig& scheduler);

// WarmupCosine: from warmup_min_ratio along warmup_share() to 1, in warmup_num_steps
// steps; then along half a cosine to cos_min_ratio, which it has from step total_num_steps - 1 on.
// The others rise from 0 to 1 in `warmup`.  Then Constant: 1.  Cosine: along half a cosine to
// min_ratio at the end; Linear: in a line.  WSD: 1, and in the last `decay` steps down to
// min_ratio. InverseSqrt: the root of warmup / step, without a warm-up that of 10,000 / (step +
// 10,000). steps_of_run: what total_num_steps is where it is absent.
double learning_rate_share(const SchedulerConfig& scheduler, std::int64_t step,
                           std::int64_t steps_of_run);

// Whether the curve has room in the run.  `tell` hears of a warm-up after which no step is left:
// the rate never is the optimizer's. Throws: ConfigError for WSD whose rise and fall do not fit.
void require_curve_fits(const SchedulerConfig& scheduler, std::int64_t steps_of_run,
                        const std::function<void(const std::string& line)>& tell);

}  // namespace penstock::config
