#include "penstock/plan/render/ticks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock::render {
namespace {

std::vector<std::string> labels(const TickRange& range) {
  std::vector<std::string> labels;
  const Ticks marks = ticks(range);
  for (const double value : marks.values) labels.push_back(tick_label(value, marks.step));
  return labels;
}

using Labels = std::vector<std::string>;

TEST(Ticks, StepsAreOneTwoOrFive) {
  EXPECT_EQ(ticks({.high = 10, .count_max = 10}).step, 1);
  EXPECT_EQ(ticks({.high = 11, .count_max = 10}).step, 2);
  EXPECT_EQ(ticks({.high = 33, .count_max = 8}).step, 5);
  EXPECT_EQ(ticks({.high = 60, .count_max = 10}).step, 10);
}

TEST(Ticks, BothEndsOfTheRangeCount) {
  EXPECT_EQ(labels({.low = -1, .high = 1, .count_max = 4}),
            (Labels{"-1.0", "-0.5", "0.0", "0.5", "1.0"}));
}

TEST(Ticks, DecimalsFollowTheStep) {
  EXPECT_EQ(labels({.high = 0.3, .count_max = 3}), (Labels{"0.0", "0.1", "0.2", "0.3"}));
  EXPECT_EQ(labels({.low = 1.234, .high = 1.241, .count_max = 4}),
            (Labels{"1.234", "1.236", "1.238", "1.240"}));
}

TEST(Ticks, AnAxisThatCountsHasNoFractions) {
  EXPECT_EQ(labels({.high = 2, .count_max = 8, .step_min = 1}), (Labels{"0", "1", "2"}));
}

TEST(Ticks, NeverMoreStepsThanAllowed) {
  for (int high = 1; high <= 1000; ++high) {
    for (int count = 1; count <= 12; ++count) {
      const Ticks marks = ticks({.high = high / 7.0, .count_max = count});
      ASSERT_LE(marks.values.size(), static_cast<std::size_t>(count) + 1) << high << ' ' << count;
      ASSERT_LE(marks.values.back(), high / 7.0 * (1 + 1e-9));
    }
  }
}

TEST(Ticks, FarFromOneLabelsHaveExponents) {
  EXPECT_EQ(tick_label(3e30, 1e30), "3e+30");
  EXPECT_EQ(tick_label(2e-9, 1e-9), "2e-09");
}

}  // namespace
}  // namespace penstock::render
