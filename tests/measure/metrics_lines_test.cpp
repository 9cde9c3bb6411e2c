#include "penstock/plan/measure/metrics_lines.h"

#include <gtest/gtest.h>

namespace penstock::measure {
namespace {

TEST(MetricsLines, HaveTheLossesOfStepsAndValidations) {
  const auto lines = metrics_lines(
      "{\"step\": 1, \"loss\": 5.5, \"lr\": 0.1}\n"
      "{\"step\": 1, \"val_loss\": 4}\n"
      "{\"step\": 2, \"loss\": 4.5, \"val_loss\": \"nan\"}");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].loss, 5.5);
  EXPECT_EQ(lines[0].validation, std::nullopt);
  EXPECT_EQ(lines[1].loss, std::nullopt);
  EXPECT_EQ(lines[1].validation, 4.0);
  EXPECT_EQ(lines[1].text, "{\"step\": 1, \"val_loss\": 4}");
  EXPECT_EQ(lines[2].step, 2);
  EXPECT_EQ(lines[2].validation, std::nullopt);
}

TEST(MetricsLines, WhatIsNoLineIsLeftOut) {
  for (const char* text : {"", "\n\n", "{\"step\": 1, \"lo", "{\"loss\": 1}", "{\"step\": 0}", "[]",
                           "{\"step\": 1e30}", "{\"step\": \"1\"}"}) {
    EXPECT_TRUE(metrics_lines(text).empty()) << text;
  }
  EXPECT_EQ(metrics_lines("nonsense\n{\"step\": 3}\nmore").size(), 1U);
}

TEST(MetricsLines, LinesUpToAStepAreWholeAndInTheirOrder) {
  const std::string text =
      "{\"step\": 2, \"text\": \"b\"}\n{\"step\": 5}\n{\"step\": 4}\n{\"step\": 1";
  EXPECT_EQ(lines_up_to(text, 4), "{\"step\": 2, \"text\": \"b\"}\n{\"step\": 4}\n");
  EXPECT_EQ(lines_up_to(text, 0), "");
}

TEST(MetricsLines, StepsBehindAStepAreThoseUpToTheLastLine) {
  EXPECT_EQ(steps_behind(4, "{\"step\": 5}\n{\"step\": 19}\n{\"step\": 20, \"lo"), 15);
  EXPECT_EQ(steps_behind(4, "{\"step\": 4}\n"), 0);
  EXPECT_EQ(steps_behind(4, ""), 0);
}

}  // namespace
}  // namespace penstock::measure
