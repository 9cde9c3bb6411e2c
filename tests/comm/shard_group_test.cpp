#include "penstock/runtime/comm/shard_group.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/same_bits.h"

namespace penstock::comm {
namespace {

using testing_support::same_bits;

// Values whose sum depends on the order of addition.
at::Tensor rows_of(std::int32_t rank, std::int32_t ranks, std::int64_t n) {
  const at::Tensor x = at::arange(ranks * n, at::kFloat).view({ranks, n});
  return (x * 0.37f + 1.7f * static_cast<float>(rank)).sin() * std::pow(10.0, rank % 3);
}

at::Tensor sum_in_order(std::int32_t ranks, std::int64_t n) {
  at::Tensor sum = rows_of(0, ranks, n);
  for (std::int32_t r = 1; r < ranks; ++r) sum = sum + rows_of(r, ranks, n);
  return sum;
}

std::vector<Rank> backwards(std::int32_t ranks) {
  std::vector<Rank> all;
  for (std::int32_t r = ranks; r-- > 0;) all.emplace_back(r);
  return all;
}

class ShardGroups : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Gloo, ShardGroups, testing::Values(Transport::Gloo));
INSTANTIATE_TEST_SUITE_P(Tcp, ShardGroups, testing::Values(Transport::Tcp));
INSTANTIATE_TEST_SUITE_P(Shm, ShardGroups, testing::Values(Transport::Shm));

// The group's order counts, which here is not that of the ranks.
TEST_P(ShardGroups, ReduceScatterAddsInTheOrderOfTheGroup) {
  for (const std::int32_t ranks : {1, 2, 3, 4}) {
    run_ranks(
        ranks,
        [&](Communicator& communicator) {
          ShardGroup group(communicator, backwards(ranks));
          EXPECT_EQ(group.place(), ranks - 1 - communicator.rank().value);
          const std::int32_t tag = group.reserve_tags(2);
          std::vector<at::Tensor> sums;
          std::vector<std::unique_ptr<Transfer>> transfers;
          for (const std::int64_t n : {1, 1000}) {  // Both under way at once.
            sums.push_back(at::empty({n}));
            transfers.push_back(group.reduce_scatter(rows_of(group.place(), ranks, n), sums.back(),
                                                     tag + static_cast<std::int32_t>(n > 1)));
          }
          for (const auto& transfer : transfers) transfer->wait();
          EXPECT_TRUE(same_bits(sums[0], sum_in_order(ranks, 1)[group.place()]));
          EXPECT_TRUE(same_bits(sums[1], sum_in_order(ranks, 1000)[group.place()]));
        },
        std::chrono::seconds(60), GetParam());
  }
}

TEST_P(ShardGroups, AllGatherBringsEveryRanksRow) {
  run_ranks(
      4,
      [&](Communicator& communicator) {
        ShardGroup group(communicator, backwards(4));
        const at::Tensor rows = at::zeros({4, 300});
        rows[group.place()].fill_(group.place() + 1);
        group.all_gather(rows, group.reserve_tags(1))->wait();
        for (int r = 0; r < 4; ++r) EXPECT_TRUE(same_bits(rows[r], at::full({300}, r + 1.0)));
      },
      std::chrono::seconds(60), GetParam());
}

TEST_P(ShardGroups, AllReduceHasTheBitsOfReduceScatter) {
  for (const std::int32_t ranks : {1, 2, 3, 4}) {
    run_ranks(
        ranks,
        [&](Communicator& communicator) {
          ShardGroup group(communicator, backwards(ranks));
          const at::Tensor rows = rows_of(group.place(), ranks, 500);
          const auto sum = group.all_reduce(rows, group.reserve_tags(1));
          sum->advance();
          sum->wait();
          EXPECT_TRUE(same_bits(rows, sum_in_order(ranks, 500)));
        },
        std::chrono::seconds(60), GetParam());
  }
}

TEST(ShardGroup, BroadcastsTensorsOfEveryType) {
  run_ranks(2, [](Communicator& communicator) {
    ShardGroup group(communicator, backwards(2));
    for (const at::ScalarType type : {at::kBool, at::kChar, at::kShort, at::kLong, at::kBFloat16,
                                      at::kFloat8_e4m3fn, at::kDouble, at::kComplexFloat}) {
      for (const std::int64_t size : {0, 1, 15}) {
        const at::Tensor value = at::full({size}, group.place()).to(type);
        group.broadcast(value, /*root=*/1)->wait();
        EXPECT_TRUE(same_bits(value, at::full({size}, 1).to(type))) << type << ", " << size;
      }
      const at::Tensor scalar = at::full({}, group.place()).to(type);
      group.broadcast(scalar, /*root=*/1)->wait();
      EXPECT_TRUE(same_bits(scalar, at::full({}, 1).to(type))) << type;
    }
  });
}

}  // namespace
}  // namespace penstock::comm
