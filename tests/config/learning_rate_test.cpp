#include "penstock/plan/config/learning_rate.h"

#include <gtest/gtest.h>

#include <array>
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

// The shares of steps 0, 1, 3, 4, 5, 10, 13, 14, 17 and 19 of 20, by transformers 5.13's schedulers
// with 4 steps of warm-up: get_linear_schedule_with_warmup and the like.
struct Published {
  const char* name;
  SchedulerConfig scheduler;
  std::array<double, 10> shares;
};

const std::array<Published, 7> kPublished = {{
    {"linear",
     {.type = SchedulerType::Linear, .warmup = 4},
     {0, .25, .75, 1, .9375, .625, .4375, .375, .1875, .0625}},
    {"cosine_with_min_lr",
     {.type = SchedulerType::Cosine, .warmup = 4, .min_ratio = 0.1},
     {0, .25, .75, 1, .9913533761814537, .7222075445642904, .4622093550927423, .3777924554357096,
      .1758386744638546, .10864662381854631}},
    {"constant_with_warmup",
     {.type = SchedulerType::Constant, .warmup = 4},
     {0, .25, .75, 1, 1, 1, 1, 1, 1, 1}},
    {"inverse_sqrt",
     {.type = SchedulerType::InverseSqrt, .warmup = 4},
     {0, .25, .75, 1, .8944271909999159, .6324555320336759, .5547001962252291, .5345224838248488,
      .48507125007266594, .4588314677411235}},
    {"wsd, cosine",
     {.type = SchedulerType::Wsd, .warmup = 4, .decay = 6, .decay_type = DecayType::Cosine},
     {0, .25, .75, 1, 1, 1, 1, 1, .5, .06698729810778065}},
    {"wsd, linear",
     {.type = SchedulerType::Wsd, .warmup = 4, .decay = 6, .decay_type = DecayType::Linear},
     {0, .25, .75, 1, 1, 1, 1, 1, .5, .16666666666666663}},
    {"wsd, 1-sqrt",
     {.type = SchedulerType::Wsd, .warmup = 4, .decay = 6, .decay_type = DecayType::OneMinusSqrt},
     {0, .25, .75, 1, 1, 1, 1, 1, .2928932188134524, .0871290708247231}},
}};

TEST(LearningRate, CoursesAreThoseOfTransformers) {
  constexpr std::array<std::int64_t, 10> kSteps = {0, 1, 3, 4, 5, 10, 13, 14, 17, 19};
  for (const Published& each : kPublished) {
    for (std::size_t i = 0; i < kSteps.size(); ++i) {
      EXPECT_NEAR(learning_rate_share(each.scheduler, kSteps[i], 20), each.shares[i], 1e-15)
          << each.name << ", step " << kSteps[i];
    }
  }
}

TEST(LearningRate, SharesAreOfTheStepsUntilTheEnd) {
  for (const Published& each : kPublished) {
    SchedulerConfig shares = each.scheduler;
    shares.warmup = 0.2;
    shares.decay = 0.3;
    for (std::int64_t step = 0; step < 25; ++step) {
      EXPECT_EQ(learning_rate_share(shares, step, 20),
                learning_rate_share(each.scheduler, step, 20))
          << each.name << ", step " << step;
    }
  }
  EXPECT_EQ(steps_of(0.03, 100), 3);
  EXPECT_EQ(steps_of(0.07, 100), 7) << "0.07 x 100 is more than 7 in floating point";
  EXPECT_EQ(steps_of(0.03, 101), 4) << "rounded up";
  EXPECT_EQ(steps_of(5, 100), 5);
}

TEST(LearningRate, KeepsItsLastValueBehindItsEnd) {
  SchedulerConfig scheduler{.type = SchedulerType::Linear, .warmup = 4, .min_ratio = 0.25};
  EXPECT_EQ(learning_rate_share(scheduler, 20, 20), 0.25);
  EXPECT_EQ(learning_rate_share(scheduler, 500, 20), 0.25);
  scheduler.type = SchedulerType::Cosine;
  EXPECT_EQ(learning_rate_share(scheduler, 500, 20), 0.25) << "a cosine would rise again";
  EXPECT_TRUE(ends_with_run(scheduler));
  scheduler.total_num_steps = 20;
  EXPECT_FALSE(ends_with_run(scheduler));
  EXPECT_FALSE(ends_with_run({.type = SchedulerType::Constant, .warmup = 4}));
  EXPECT_TRUE(ends_with_run({.type = SchedulerType::Constant, .warmup = 0.5}));
}

}  // namespace
}  // namespace penstock::config
