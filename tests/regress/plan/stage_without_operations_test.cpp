// A measured stage of layers without a product was split over them by their shares of 0: the plan
// had steps of "nan" ms.
#include <gtest/gtest.h>

#include <vector>

#include "penstock/plan/choose/layer_times.h"

namespace penstock::choose {
namespace {

TEST(StageWithoutOperations, ItsLayersTakeEqualShares) {
  simulate::Costs costs;
  costs.forward = std::vector<double>{4.0, 6.0};  // Milliseconds, by stage.
  costs.input = costs.weight = std::vector<double>{2.0, 3.0};
  const partition::Partition partition{.bounds = {0, 2, 4}};
  const auto times = times_of(costs, partition, {1.0, 3.0, 0.0, 0.0}, /*measured=*/1.0,
                              /*microbatch=*/1.0);
  EXPECT_DOUBLE_EQ(times[0].forward, 0.001);
  EXPECT_DOUBLE_EQ(times[1].forward, 0.003);
  EXPECT_DOUBLE_EQ(times[2].forward, 0.003);
  EXPECT_DOUBLE_EQ(times[3].forward, 0.003);
  EXPECT_DOUBLE_EQ(times[3].backward, 0.003);
}

}  // namespace
}  // namespace penstock::choose
