#include "penstock/plan/render/number.h"

#include <gtest/gtest.h>

#include <limits>

namespace penstock::render {
namespace {

TEST(Number, FixedHasTheDecimalsAskedFor) {
  EXPECT_EQ(fixed(0.5, 3), "0.500");
  EXPECT_EQ(fixed(1e9 + 0.1234, 3), "1000000000.123");
  EXPECT_EQ(fixed(-2, 0), "-2");
}

TEST(Number, ZeroHasNoSign) {
  EXPECT_EQ(fixed(-0.0, 2), "0.00");
  EXPECT_EQ(fixed(-0.001, 2), "0.00");
  EXPECT_EQ(significant(-0.0), "0");
}

TEST(Number, RoundedDropsZerosAfterThePointOnly) {
  EXPECT_EQ(rounded(0.5, 3), "0.5");
  EXPECT_EQ(rounded(2, 3), "2");
  EXPECT_EQ(rounded(100, 0), "100");
  EXPECT_EQ(rounded(100, 2), "100");
}

TEST(Number, SignificantHidesTheRoundingOfSums) {
  EXPECT_EQ(significant(0.1 + 0.2), "0.3");
  EXPECT_EQ(significant(33), "33");
}

TEST(Number, TheLargestDoubleFits) {
  EXPECT_EQ(fixed(-std::numeric_limits<double>::max(), 17).size(), 1u + 309u + 1u + 17u);
}

TEST(NumberDeathTest, RefusesWhatNoDrawingCanShow) {
  EXPECT_DEATH(fixed(std::numeric_limits<double>::infinity(), 2), "no place for inf");
}

}  // namespace
}  // namespace penstock::render
