#include "penstock/plan/config/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::config {

double warmup_share(WarmupType type, std::int64_t step, std::int64_t steps) {
  if (step >= steps) return 1.0;
  const auto at = static_cast<double>(step);
  const auto all = static_cast<double>(steps);
  return type == WarmupType::Log ? std::log(at + 1) / std::log(all) : at / all;
}

namespace {

// The place of a step in `count` steps from `first` on, from 0 to 1.
double place_of(std::int64_t step, std::int64_t first, std::int64_t count) {
  const double place =
      static_cast<double>(step - first) / static_cast<double>(std::max<std::int64_t>(1, count));
  return std::clamp(place, 0.0, 1.0);
}

double fallen(DecayType shape, double place) {
  switch (shape) {
    case DecayType::Cosine:
      return (1.0 + std::cos(std::numbers::pi * place)) / 2.0;
    case DecayType::Linear:
      return 1.0 - place;
    case DecayType::OneMinusSqrt:
      return 1.0 - std::sqrt(place);
  }
  return 0.0;
}

double down_to(double least, double share) { return least + (1.0 - least) * share; }

double inverse_sqrt(std::int64_t step, std::int64_t warmup) {
  constexpr std::int64_t kWithoutWarmup = 10'000;
  const std::int64_t scale = warmup > 0 ? warmup : kWithoutWarmup;
  const auto at = static_cast<double>(step - warmup + scale);
  return 1.0 / std::sqrt(at / static_cast<double>(scale));
}

double deepspeeds_share(const SchedulerConfig& scheduler, std::int64_t step, std::int64_t total) {
  const std::int64_t warmup = std::max(kWarmupStepsMin, scheduler.warmup_num_steps);
  if (step < warmup) {
    const double rise = warmup_share(scheduler.warmup_type, step, warmup);
    return scheduler.warmup_min_ratio + (1.0 - scheduler.warmup_min_ratio) * rise;
  }
  const auto falling = static_cast<double>(std::max<std::int64_t>(1, total - warmup));
  const double place = std::min(1.0, static_cast<double>(step - warmup + 1) / falling);
  const double half = (1.0 + std::cos(std::numbers::pi * place)) / 2.0;
  return scheduler.cos_min_ratio + (1.0 - scheduler.cos_min_ratio) * half;
}

}  // namespace

std::int64_t steps_of(double amount, std::int64_t total) {
  constexpr double kRounding = 1e-9;  // 0.07 x 100 is a bit more than 7.
  const double steps = amount < 1.0 ? amount * static_cast<double>(total) : amount;
  return static_cast<std::int64_t>(std::ceil(steps - kRounding));
}

bool ends_with_run(const SchedulerConfig& scheduler) {
  switch (scheduler.type) {
    case SchedulerType::Constant:
    case SchedulerType::InverseSqrt:
      return scheduler.warmup > 0 && scheduler.warmup < 1;
    case SchedulerType::WarmupCosine:
    case SchedulerType::Cosine:
    case SchedulerType::Linear:
    case SchedulerType::Wsd:
      return !scheduler.total_num_steps;
  }
  return false;
}

double learning_rate_share(const SchedulerConfig& scheduler, std::int64_t step,
                           std::int64_t steps_of_run) {
  const std::int64_t total = scheduler.total_num_steps.value_or(steps_of_run);
  if (scheduler.type == SchedulerType::WarmupCosine) {
    return deepspeeds_share(scheduler, step, total);
  }
  const std::int64_t warmup = steps_of(scheduler.warmup, total);
  if (step < warmup) return place_of(step, 0, warmup);
  switch (scheduler.type) {
    case SchedulerType::Constant:
    case SchedulerType::WarmupCosine:
      return 1.0;
    case SchedulerType::InverseSqrt:
      return inverse_sqrt(step, warmup);
    case SchedulerType::Cosine:
      return down_to(scheduler.min_ratio,
                     fallen(DecayType::Cosine, place_of(step, warmup, total - warmup)));
    case SchedulerType::Linear:
      return down_to(scheduler.min_ratio,
                     fallen(DecayType::Linear, place_of(step, warmup, total - warmup)));
    case SchedulerType::Wsd: {
      const std::int64_t decay = steps_of(scheduler.decay, total);
      if (decay == 0) return step < total ? 1.0 : scheduler.min_ratio;
      return down_to(scheduler.min_ratio,
                     fallen(scheduler.decay_type, place_of(step, total - decay, decay)));
    }
  }
  return 1.0;
}

void require_curve_fits(const SchedulerConfig& scheduler, std::int64_t steps_of_run,
                        const std::function<void(const std::string& line)>& tell) {
  const std::int64_t total = scheduler.total_num_steps.value_or(steps_of_run);
  const std::int64_t warmup = scheduler.type == SchedulerType::WarmupCosine
                                  ? std::max(kWarmupStepsMin, scheduler.warmup_num_steps)
                                  : steps_of(scheduler.warmup, total);
  const std::int64_t decay =
      scheduler.type == SchedulerType::Wsd ? steps_of(scheduler.decay, total) : 0;
  if (warmup + decay > total && decay > 0) {
    throw ConfigError(str("scheduler.params.decay = ", shortest(scheduler.decay), ": the last ",
                          decay, " steps, and the first ", warmup, " of warmup, are more than the ",
                          total, " steps of the schedule"),
                      {"shares fit runs of every length: \"decay\": 0.1 is their last tenth"});
  }
  if (warmup < steps_of_run || steps_of_run <= 1) return;
  tell(str("the warm-up takes ", warmup, " steps, and the run has ", steps_of_run,
           ": the learning rate never is optimizer.params.lr"));
}

}  // namespace penstock::config
