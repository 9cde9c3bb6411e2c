// What layers take, from the costs of stages, or of themselves.
#include "penstock/plan/choose/layer_times.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"

namespace penstock::choose {
namespace {

using Numbers = std::vector<double>;

const std::vector<double> kOperations = {10, 30, 60};

simulate::Costs costs_of(const Numbers& forward, const Numbers& backward) {
  return {.forward = forward, .input = 1.0, .weight = 2.0, .backward = verify::PerStage(backward)};
}

TEST(LayerTimes, AStagesCostIsSharedOutByOperations) {
  const auto times =
      times_of(costs_of({4, 8}, {10, 20}), {.bounds = {0, 2, 3}}, kOperations, 2.0, 2.0);
  EXPECT_DOUBLE_EQ(times[0].forward, 0.001);
  EXPECT_DOUBLE_EQ(times[1].forward, 0.003);
  EXPECT_DOUBLE_EQ(times[2].forward, 0.008);
  EXPECT_DOUBLE_EQ(times[0].backward, 0.0025);
}

// Their operations do not matter: a layer that is slow for what it computes stays so.
TEST(LayerTimes, CostsOfLayersAreTheirOwn) {
  const simulate::Costs costs = costs_of({7, 5, 3}, {1, 2, 4});
  EXPECT_TRUE(are_by_layer(costs, 3));
  EXPECT_FALSE(are_by_layer(costs, 4));
  const auto times = times_of(costs, partition::one_layer_each(3), kOperations, 2.0, 4.0);
  EXPECT_DOUBLE_EQ(times[0].forward, 0.014);
  EXPECT_DOUBLE_EQ(times[1].forward, 0.010);
  EXPECT_DOUBLE_EQ(times[2].forward, 0.006);
  EXPECT_DOUBLE_EQ(times[2].backward, 0.008);
  EXPECT_DOUBLE_EQ(times[0].input, 0.002);
  EXPECT_DOUBLE_EQ(times[0].weight, 0.004);
}

TEST(LayerTimes, OneLayerIsAStageAnyway) {
  EXPECT_FALSE(are_by_layer({}, 1));
  EXPECT_EQ(partition::one_layer_each(1).bounds, (std::vector<std::int64_t>{0, 1}));
}

}  // namespace
}  // namespace penstock::choose
