// The scale of fp16 losses against recorded courses, step by step.
#include "penstock/runtime/update/gradient_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::update {
namespace {

// The scales after each of some steps: 'x' overflows, '.' does not.
std::string scales(config::Fp16Config options, const std::string& steps) {
  options.enabled = true;
  GradientScale scale(options);
  std::vector<std::string> values;
  for (const char step : steps) {
    scale.update(step == 'x');
    values.push_back(shortest(scale.value()));
  }
  return join(values, " ");
}

// Recorded from DeepSpeed 0.19.8's DynamicLossScaler, like those below.
TEST(GradientScale, DoublesAfterAWindowWithoutAnOverflow) {
  const config::Fp16Config options{
      .initial_scale_power = 4, .loss_scale_window = 3, .hysteresis = 1};
  EXPECT_EQ(scales(options, "......."), "16 16 16 32 32 32 64");
  EXPECT_EQ(scales(options, ".x......"), "16 8 8 8 8 16 16 16");
}

TEST(GradientScale, HalvesAtTheLastOfSoManyOverflows) {
  EXPECT_EQ(scales({.initial_scale_power = 4, .hysteresis = 1}, "xx.x"), "8 4 4 2");
  EXPECT_EQ(scales({.initial_scale_power = 4}, "xx.x"), "16 8 8 4");
  EXPECT_EQ(scales({.initial_scale_power = 4, .hysteresis = 3}, "xxxx"), "16 16 8 4");
  EXPECT_EQ(scales({.initial_scale_power = 4, .loss_scale_window = 2}, "x...x.xx"),
            "16 16 16 32 32 32 16 8");
  EXPECT_EQ(
      scales({.initial_scale_power = 8, .loss_scale_window = 4}, "x..x..xx....x.xx......xxxx"),
      "256 256 256 128 128 128 64 32 32 32 32 32 16 16 8 4 4 4 4 4 8 8 8 4 2 1");
}

TEST(GradientScale, ConsecutiveHysteresisForgetsOverflowsAtAStepWithoutOne) {
  EXPECT_EQ(scales({.initial_scale_power = 4, .consecutive_hysteresis = true}, "x.x.xx"),
            "16 16 16 16 16 8");
  EXPECT_EQ(scales({.initial_scale_power = 8,
                    .loss_scale_window = 4,
                    .hysteresis = 3,
                    .consecutive_hysteresis = true},
                   "x..x..xx....x.xx......xxxx"),
            "256 256 256 256 256 256 256 256 256 256 256 256 256 256 256 256 256 256 256 256 512 "
            "512 512 512 256 128");
}

TEST(GradientScale, AnOverflowAtTheSmallestEndsTheRun) {
  EXPECT_EQ(scales({.initial_scale_power = 4, .hysteresis = 1, .min_loss_scale = 5}, "xx"), "8 5");
  try {
    scales({.initial_scale_power = 4, .hysteresis = 1, .min_loss_scale = 5}, "xxx");
    FAIL() << "no error";
  } catch (const NumericsError& error) {
    EXPECT_EQ(error.message(),
              "the gradients overflow at the smallest gradient scale, 5, so no scale is left to "
              "try");
  }
}

TEST(GradientScale, OneThatBeginsBelowTheSmallestIsNotRaisedByAnOverflow) {
  EXPECT_EQ(scales({.initial_scale_power = 1, .min_loss_scale = 5}, "...x"), "2 2 2 2");
  EXPECT_THROW(scales({.initial_scale_power = 1, .min_loss_scale = 5}, "xx"), NumericsError);
}

TEST(GradientScale, GoesOnFromItsStateAsIfItHadNotBeenInterrupted) {
  const std::string course = "x..x..xx....x.xx......xxxx";
  for (const bool consecutive : {false, true}) {
    const config::Fp16Config options{.enabled = true,
                                     .initial_scale_power = 8,
                                     .loss_scale_window = 4,
                                     .hysteresis = 3,
                                     .consecutive_hysteresis = consecutive};
    GradientScale whole(options);
    for (std::size_t cut = 0; cut < course.size(); ++cut) {
      GradientScale next(options);
      next.go_on_from(whole.state().value());
      GradientScale uninterrupted = whole;
      for (const char step : course.substr(cut)) {
        next.update(step == 'x');
        uninterrupted.update(step == 'x');
        ASSERT_EQ(next.state(), uninterrupted.state()) << cut;
      }
      whole.update(course[cut] == 'x');
    }
  }
}

TEST(GradientScale, GoesOnWithNoMoreLivesThanItsOptionsGive) {
  GradientScale scale({.enabled = true, .hysteresis = 2});
  scale.go_on_from({.value = 64, .lives = 5, .clean_steps = 7});
  EXPECT_EQ(scale.state(), (GradientScale::State{.value = 64, .lives = 2, .clean_steps = 7}));
}

TEST(GradientScale, RefusesAStateThatNoneHas) {
  GradientScale scale({.enabled = true});
  const auto before = scale.state();
  EXPECT_THROW(scale.go_on_from({.value = 0}), Error);
  EXPECT_THROW(scale.go_on_from({.value = std::nan("")}), Error);
  EXPECT_THROW(scale.go_on_from({.value = 2, .lives = 0}), Error);
  EXPECT_THROW(scale.go_on_from({.value = 2, .clean_steps = -1}), Error);
  EXPECT_EQ(scale.state(), before);
}

TEST(GradientScale, AFixedOneStays) {
  EXPECT_EQ(scales({.loss_scale = 138.0, .loss_scale_window = 1, .hysteresis = 1}, ".x.xx"),
            "138 138 138 138 138");
  GradientScale none;
  none.update(true);
  EXPECT_EQ(none.value(), 1.0);
  EXPECT_EQ(none.state(), std::nullopt);
  none.go_on_from({.value = 8});
  EXPECT_EQ(none.value(), 1.0);
}

}  // namespace
}  // namespace penstock::update
