#include "penstock/plan/choose/network.h"

#include <gtest/gtest.h>

namespace penstock::choose {
namespace {

constexpr LinkSpeed kIntra{.latency = 1e-6, .bandwidth = 100.0};
constexpr LinkSpeed kInter{.latency = 1e-5, .bandwidth = 10.0};

TEST(Network, LinksWithinANodeAreIntra) {
  const Network network{.intra = kIntra, .inter = kInter, .ranks_per_node = 4};
  EXPECT_EQ(network.between(Rank(0), Rank(3)).bandwidth, 100.0);
  EXPECT_EQ(network.between(Rank(3), Rank(4)).bandwidth, 10.0);
  EXPECT_EQ(network.within(Rank(4), Rank(7)).bandwidth, 100.0);
  EXPECT_EQ(network.within(Rank(4), Rank(8)).bandwidth, 10.0);
}

TEST(Network, OneNodeHasAllRanksUnlessTheirNumberIsSaid) {
  const Network network{.intra = kIntra, .inter = kInter};
  EXPECT_EQ(network.between(Rank(0), Rank(9999)).bandwidth, 100.0);
}

TEST(Network, ACollectiveTakesTheLinksOfAllItsRanksOfANode) {
  const Network network{.intra = kIntra, .inter = kInter, .ranks_per_node = 4};
  EXPECT_EQ(network.among(Rank(0), Rank(3), 4).bandwidth, 100.0);
  EXPECT_EQ(network.among(Rank(0), Rank(7), 8).bandwidth, 40.0);
  EXPECT_EQ(network.among(Rank(0), Rank(6), 4).bandwidth, 20.0);   // Two of each node.
  EXPECT_EQ(network.among(Rank(0), Rank(4), 2).bandwidth, 10.0);   // One of each.
  EXPECT_EQ(network.among(Rank(0), Rank(16), 3).bandwidth, 10.0);  // Nodes apart.
  const Network slow{.intra = {.bandwidth = 15.0}, .inter = kInter, .ranks_per_node = 4};
  EXPECT_EQ(slow.among(Rank(0), Rank(7), 8).bandwidth, 15.0);
}

TEST(CollectiveTime, OneRankWaitsForNobody) { EXPECT_EQ(collective_time(kInter, 1, 1e9), 0.0); }

TEST(CollectiveTime, ARingMovesAllButARanksOwnShare) {
  EXPECT_DOUBLE_EQ(collective_time({.bandwidth = 10.0}, 4, 40.0), 3.0);
}

TEST(CollectiveTime, LatencyGrowsWithTheLogarithmOfTheRanks) {
  const LinkSpeed link{.latency = 1.0};
  EXPECT_DOUBLE_EQ(collective_time(link, 2, 40.0), 1.0);
  EXPECT_DOUBLE_EQ(collective_time(link, 8, 40.0), 3.0);
  EXPECT_DOUBLE_EQ(collective_time(link, 9, 40.0), 4.0);
}

}  // namespace
}  // namespace penstock::choose
