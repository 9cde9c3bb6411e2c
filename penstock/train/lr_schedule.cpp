#include "penstock/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock::train {

double lr_factor(const config::SchedulerConfig& scheduler, std::int64_t step,
                 std::int64_t total_steps) {
  if (scheduler.type == config::SchedulerType::Constant) return 1.0;
  const auto warmup = static_cast<double>(scheduler.warmup_num_steps);
  const auto at = static_cast<double>(step);
  if (at < warmup) {
    return scheduler.warmup_min_ratio + (1.0 - scheduler.warmup_min_ratio) * at / warmup;
  }
  const auto total = static_cast<double>(scheduler.total_num_steps.value_or(total_steps));
  const double done = total > warmup ? std::min(1.0, (at - warmup) / (total - warmup)) : 1.0;
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return scheduler.cos_min_ratio + (1.0 - scheduler.cos_min_ratio) * cosine;
}

}  // namespace penstock::train
