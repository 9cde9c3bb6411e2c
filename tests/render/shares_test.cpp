#include "penstock/plan/render/shares.h"

#include <gtest/gtest.h>

namespace penstock::render {
namespace {

using schedule::Op;

double share(const OpShares& shares, Op op) { return shares[static_cast<std::size_t>(op)]; }

TEST(Shares, ABarIsSpreadOverTheStretchesThatItCovers) {
  const std::vector<Bar> bars = {{.action = {StageId(0), Op::Forward}, .start = 0.5, .end = 2.25},
                                 {.action = {StageId(0), Op::Backward}, .start = 2.25, .end = 4}};
  const auto shares = shares_of(bars, 4, 4);
  ASSERT_EQ(shares.size(), 4u);
  EXPECT_EQ(share(shares[0], Op::Forward), 0.5);
  EXPECT_EQ(share(shares[1], Op::Forward), 1);
  EXPECT_EQ(share(shares[2], Op::Forward), 0.25);
  EXPECT_EQ(share(shares[2], Op::Backward), 0.75);
  EXPECT_EQ(share(shares[3], Op::Backward), 1);
  EXPECT_EQ(share(shares[3], Op::Forward), 0);
}

TEST(Shares, SharesOfManyShortBarsAddUp) {
  std::vector<Bar> bars;
  for (int i = 0; i < 64; ++i) {
    bars.push_back({.action = {StageId(0), i % 2 == 0 ? Op::Forward : Op::Backward},
                    .start = i * 1.0,
                    .end = i + (i % 2 == 0 ? 0.5 : 1.0)});
  }
  for (const OpShares& shares : shares_of(bars, 64, 4)) {
    EXPECT_EQ(share(shares, Op::Forward), 0.25);
    EXPECT_EQ(share(shares, Op::Backward), 0.5);
  }
}

TEST(Shares, BarsThatTakeNoTimeHaveNoShare) {
  const std::vector<Bar> bars = {{.action = {StageId(0), Op::Forward}, .start = 1, .end = 1}};
  EXPECT_EQ(share(shares_of(bars, 1, 1)[0], Op::Forward), 0);
}

}  // namespace
}  // namespace penstock::render
