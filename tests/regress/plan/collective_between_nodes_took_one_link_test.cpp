// 16 ranks on two nodes summed as if one of the eight links of a node carried all of it.
#include <gtest/gtest.h>

#include "penstock/plan/choose/network.h"

namespace penstock::choose {
namespace {

TEST(Regress, CollectiveBetweenNodesTookOneLink) {
  const Network network{
      .intra = {.bandwidth = 300e9}, .inter = {.bandwidth = 25e9}, .ranks_per_node = 8};
  EXPECT_EQ(network.among(Rank(0), Rank(15), 16).bandwidth, 200e9);
}

}  // namespace
}  // namespace penstock::choose
