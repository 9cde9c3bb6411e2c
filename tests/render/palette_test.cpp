#include "penstock/plan/render/palette.h"

#include <gtest/gtest.h>

namespace penstock::render {
namespace {

TEST(Palette, PrintsAsHexadecimal) { EXPECT_EQ(to_string(kBlue), "#0072b2"); }

TEST(Palette, BlendEndsAtItsEnds) {
  EXPECT_EQ(blend(kOrange, kVermilion, 0), kOrange);
  EXPECT_EQ(blend(kOrange, kVermilion, 1), kVermilion);
  EXPECT_EQ(blend({0, 0, 0}, {200, 100, 50}, 0.5), (Colour{100, 50, 25}));
}

TEST(Palette, TextIsLightOnDarkAndDarkOnLight) {
  EXPECT_EQ(text_on(kBlue), kPaper);
  EXPECT_EQ(text_on(kOrange), kInk);
  EXPECT_EQ(text_on(kSkyBlue), kInk);
}

}  // namespace
}  // namespace penstock::render
