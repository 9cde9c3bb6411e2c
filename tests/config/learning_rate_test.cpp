#include "penstock/plan/config/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace penstock::config {
namespace {

const SchedulerConfig kTenLinearSteps{
    .type = SchedulerType::WarmupCosine, .warmup_num_steps = 10, .warmup_type = WarmupType::Linear};

TEST(LearningRate, ConstantIsOne) {
  for (const std::int64_t step : {0, 7, 1000}) EXPECT_EQ(learning_rate_share({}, step, 100), 1.0);
}

TEST(LearningRate, RisesAndThenFollowsHalfACosine) {
  SchedulerConfig scheduler = kTenLinearSteps;
  scheduler.warmup_min_ratio = 0.2;
  scheduler.cos_min_ratio = 0.1;
  const auto share = [&](std::int64_t step) { return learning_rate_share(scheduler, step, 110); };
  for (std::int64_t step = 0; step < 10; ++step) {
    EXPECT_NEAR(share(step), 0.2 + 0.08 * static_cast<double>(step), 1e-15);
  }
  for (std::int64_t step = 10; step < 110; ++step) {
    const double angle = std::numbers::pi * static_cast<double>(step - 9) / 100;
    EXPECT_NEAR(share(step), 0.1 + 0.45 * (1 + std::cos(angle)), 1e-15);
  }
  EXPECT_DOUBLE_EQ(share(59), 0.55);
  EXPECT_DOUBLE_EQ(share(109), 0.1) << "the last step";
  EXPECT_DOUBLE_EQ(share(5000), 0.1) << "kept after it";
  scheduler.warmup_type = WarmupType::Log;
  for (std::int64_t step = 0; step < 10; ++step) {
    EXPECT_NEAR(share(step), 0.2 + 0.8 * std::log10(static_cast<double>(step) + 1), 1e-15);
  }
}

TEST(LearningRate, ItsOwnTotalGoesBeforeTheRunsAndARunMayEndInItsWarmup) {
  SchedulerConfig scheduler = kTenLinearSteps;
  scheduler.total_num_steps = 20;
  scheduler.cos_min_ratio = 0.0;
  EXPECT_DOUBLE_EQ(learning_rate_share(scheduler, 14, 1000), 0.5);
  scheduler.total_num_steps.reset();
  EXPECT_DOUBLE_EQ(learning_rate_share(scheduler, 4, 5), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate_share(scheduler, 10, 10), 0.0);
}

TEST(LearningRate, AWarmupHasTwoStepsAtLeast) {
  const SchedulerConfig scheduler{.type = SchedulerType::WarmupCosine, .warmup_num_steps = 0};
  EXPECT_EQ(learning_rate_share(scheduler, 0, 100), 0.0);
  EXPECT_EQ(learning_rate_share(scheduler, 1, 100), 1.0);
}

}  // namespace
}  // namespace penstock::config
