#include "penstock/plan/render/breakdown_svg.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"

namespace penstock::render {
namespace {

TEST(BreakdownSvg, PartsAreAsLongAsTheyAreLarge) {
  const std::vector<Breakdown> breakdowns = {
      {.label = "1: a & b", .parts = {{"products", 30.0}, {"bubble", 10.0}, {"update", 0.0}}},
      {.label = "2", .parts = {{"products", 60.0}, {"bubble", 15.0}, {"update", 5.0}}}};
  const std::string svg = breakdown_svg(breakdowns, "parts", "ms", "time-");
  // The longest bar, 80 ms, is 820 pixels.
  EXPECT_NE(svg.find("width=\"307.5\""), std::string::npos) << svg;  // 30 ms.
  EXPECT_NE(svg.find("width=\"615\""), std::string::npos);           // 60 ms.
  EXPECT_NE(svg.find("products: 30 ms, 75.0%"), std::string::npos);
  EXPECT_EQ(svg.find("update: 0 ms"), std::string::npos);
  EXPECT_NE(svg.find("id=\"time-1\""), std::string::npos);
  EXPECT_NE(svg.find("id=\"time-2\""), std::string::npos);
  EXPECT_NE(svg.find("1: a &amp; b"), std::string::npos);
}

}  // namespace
}  // namespace penstock::render
