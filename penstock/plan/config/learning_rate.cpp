#include "penstock/plan/config/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock::config {

double warmup_share(WarmupType type, std::int64_t step, std::int64_t steps) {
  if (step >= steps) return 1.0;
  const auto at = static_cast<double>(step);
  const auto all = static_cast<double>(steps);
  return type == WarmupType::Log ? std::log(at + 1) / std::log(all) : at / all;
}

double learning_rate_share(const SchedulerConfig& scheduler, std::int64_t step,
                           std::int64_t steps_of_run) {
  if (scheduler.type == SchedulerType::Constant) return 1.0;
  const std::int64_t warmup = std::max(kWarmupStepsMin, scheduler.warmup_num_steps);
  if (step < warmup) {
    const double rise = warmup_share(scheduler.warmup_type, step, warmup);
    return scheduler.warmup_min_ratio + (1.0 - scheduler.warmup_min_ratio) * rise;
  }
  const std::int64_t total = scheduler.total_num_steps.value_or(steps_of_run);
  const auto falling = static_cast<double>(std::max<std::int64_t>(1, total - warmup));
  const double place = std::min(1.0, static_cast<double>(step - warmup + 1) / falling);
  const double half = (1.0 + std::cos(std::numbers::pi * place)) / 2.0;
  return scheduler.cos_min_ratio + (1.0 - scheduler.cos_min_ratio) * half;
}

}  // namespace penstock::config
