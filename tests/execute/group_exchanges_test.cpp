// Exchanges between ranks that share layers, of values however they lie in memory.
#include "penstock/runtime/execute/group_exchanges.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "tests/support/same_bits.h"

namespace penstock::execute {
namespace {

using testing_support::same_bits;

// Integers, whose sums are exact in every type and order.
at::Tensor value_of(std::int64_t rank, const std::string& layout, at::ScalarType type) {
  const at::Tensor all = (at::arange(2 * 6 * 5 * 6, at::kLong) * (rank + 3)) % 7 - 3;
  const at::Tensor blocks = all.view({2, 6, 5, 6}).to(type);
  if (layout == "transposed") return blocks[0].transpose(0, 2);
  if (layout == "sliced") return blocks[1].slice(2, 0, 6, 2);
  if (layout == "expanded") return blocks[1].slice(2, 1, 2).expand({6, 5, 6});
  return blocks[1];  // Begins amid its memory.
}

TEST(GroupExchanges, TakeValuesWithAnyStridesAndLeaveThemAsTheyAre) {
  constexpr std::int32_t kRanks = 3;
  using exchange::Action;
  comm::run_ranks(kRanks, [&](comm::Communicator& communicator) {
    comm::ShardGroup group(communicator, communicator.all_ranks());
    Progress progress;
    GroupExchanges exchanges(communicator, group, progress);
    const auto mine_of = [&](const at::Tensor& whole, std::int64_t dimension) {
      const Interval here = partition::part_of(whole.size(dimension), exchanges.share());
      return whole.narrow(dimension, here.first, here.count);
    };
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      for (const std::string layout : {"transposed", "sliced", "expanded", "amid"}) {
        SCOPED_TRACE(str(layout, " ", c10::toString(type)));
        std::vector<at::Tensor> all;
        for (std::int64_t r = 0; r < kRanks; ++r) all.push_back(value_of(r, layout, type));
        const at::Tensor value = value_of(exchanges.share().index, layout, type);
        const auto run = [&](Action action, const at::Tensor& of, std::int64_t dimension) {
          const at::Tensor before = of.clone();
          const at::Tensor result = exchanges.run({.action = action,
                                                   .dimension = dimension,
                                                   .whole = all[0].size(dimension),
                                                   .name = "an exchange"},
                                                  of);
          EXPECT_TRUE(same_bits(of, before));
          return result;
        };
        const at::Tensor stacked = at::stack(all), sum = stacked.sum(0);
        EXPECT_TRUE(same_bits(run(Action::AllReduce, value, 0), sum));
        EXPECT_TRUE(same_bits(run(Action::AllReduceMax, value, 0), stacked.amax(0)));
        for (const std::int64_t dimension : {0, 1, 2}) {
          EXPECT_TRUE(
              same_bits(run(Action::ReduceScatter, value, dimension), mine_of(sum, dimension)));
          const at::Tensor part = mine_of(all[0], dimension);
          EXPECT_TRUE(same_bits(run(Action::AllGather, part, dimension), all[0]));
        }
      }
    }
  });
}

// A large value is added up in parts, which do not divide it.
TEST(GroupExchanges, SumsOfLargeValuesAreWholeOnEveryRank) {
  constexpr std::int32_t kRanks = 3;
  comm::run_ranks(kRanks, [&](comm::Communicator& communicator) {
    comm::ShardGroup group(communicator, communicator.all_ranks());
    Progress progress;
    GroupExchanges exchanges(communicator, group, progress);
    const at::Tensor numbers = at::arange(7 * 20'001, at::kFloat).view({7, 20'001}).t();
    const at::Tensor value = numbers * static_cast<double>(exchanges.share().index + 1);
    const at::Tensor before = value.clone();
    const at::Tensor sum =
        exchanges.run({.action = exchange::Action::AllReduce, .name = "an exchange"}, value);
    EXPECT_TRUE(same_bits(sum, numbers * 6));  // Integers below 2^24.
    EXPECT_TRUE(same_bits(value, before));
  });
}

}  // namespace
}  // namespace penstock::execute
