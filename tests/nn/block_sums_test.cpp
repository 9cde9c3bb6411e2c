// Sums in blocks: 2, 4 and 8 ranks that begin the tree further down have the bits of one.
#include "penstock/runtime/nn/block_sums.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

using testing_support::message_of;
using testing_support::same_bits;

// Adds what ranks have as exchanges do: neighbours first.
at::Tensor exchanged(std::vector<at::Tensor> ranks) {
  while (ranks.size() > 1) {
    std::vector<at::Tensor> pairs;
    for (std::size_t i = 0; i < ranks.size(); i += 2) pairs.push_back(ranks[i] + ranks[i + 1]);
    ranks = std::move(pairs);
  }
  return ranks.front();
}

// `of_rank(first, count, blocks)` of each of so many ranks, added up.
template <class OfRank>
at::Tensor shared(std::int64_t ranks, std::int64_t size, const OfRank& of_rank) {
  const std::int64_t count = size / ranks;
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < ranks; ++i) all.push_back(of_rank(i * count, count, 8 / ranks));
  return exchanged(std::move(all));
}

class BlockSums : public testing::TestWithParam<std::int64_t> {};

TEST_P(BlockSums, OfProductsHaveTheBitsOfOneRank) {
  const std::int64_t width = GetParam();
  const at::Tensor x = at::randn({2, 11, width}), w = at::randn({40, width});
  const auto of_rank = [&](std::int64_t first, std::int64_t count, std::int64_t blocks) {
    return product_in_blocks(x.narrow(2, first, count).contiguous(),
                             w.narrow(1, first, count).contiguous(), blocks);
  };
  const at::Tensor one = of_rank(0, width, 8);
  EXPECT_TRUE(one.allclose(at::matmul(x, w.t()), 1e-4, 1e-4));
  for (const std::int64_t ranks : {2, 4, 8}) {
    EXPECT_TRUE(same_bits(shared(ranks, width, of_rank), one)) << ranks;
  }
}

TEST_P(BlockSums, OfGradientsOfSharedOutputsHaveTheBitsOfOneRank) {
  const std::int64_t width = GetParam();
  const at::Tensor of_first = at::randn({2, 11, width}), of_second = at::randn({2, 11, 2 * width});
  const at::Tensor first_weight = at::randn({width, 40}),
                   second_weight = at::randn({2 * width, 40});
  const auto of_rank = [&](std::int64_t first, std::int64_t count, std::int64_t blocks) {
    const std::vector<Linear> linears = {{first_weight.narrow(0, first, count), {}},
                                         {second_weight.narrow(0, 2 * first, 2 * count), {}}};
    return gradient_of_shared(linears,
                              {of_first.narrow(2, first, count).contiguous(),
                               of_second.narrow(2, 2 * first, 2 * count).contiguous()},
                              blocks);
  };
  const at::Tensor one = of_rank(0, width, 8);
  EXPECT_TRUE(one.allclose(
      at::matmul(of_first, first_weight) + at::matmul(of_second, second_weight), 1e-4, 1e-4));
  for (const std::int64_t ranks : {2, 4, 8}) {
    EXPECT_TRUE(same_bits(shared(ranks, width, of_rank), one)) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, BlockSums, testing::Values(128, 384, 1152));

TEST(BlockSums, OfRowsHaveTheBitsOfOneRankForEveryCutThatIsEven) {
  for (const std::int64_t rows : {8, 24, 56, 104}) {
    const at::Tensor x = at::randn({3, rows, 13});
    const at::Tensor one = sum_of_rows(x);
    EXPECT_TRUE(one.allclose(x.sum({0, 1}), 1e-4, 1e-4));
    for (const std::int64_t ranks : {2, 4, 8}) {
      const auto of_rank = [&](std::int64_t first, std::int64_t count, std::int64_t) {
        return sum_of_rows(x.narrow(1, first, count));
      };
      EXPECT_TRUE(same_bits(shared(ranks, rows, of_rank), one)) << rows << " rows, " << ranks;
    }
  }
  EXPECT_TRUE(sum_of_rows(at::randn({1, 7})).sizes() == at::IntArrayRef{7});
}

TEST(BlockSums, AreOfWidthsThatEveryRankHasAsMuchOf) {
  const auto refusal = [](std::int64_t ranks, std::int64_t size, std::int64_t unit) {
    const Making making{.share = {.index = 0, .of = ranks}, .blocks = 1};
    return message_of([&] { check_width(making, "features", size, unit); });
  };
  EXPECT_EQ(refusal(8, 128, 16), "no error");
  EXPECT_EQ(refusal(1, 7, 1), "no error");
  EXPECT_EQ(
      refusal(8, 192, 1),
      "mesh.tensor = 8 with numerics.invariant: ranks cannot share 192 features, each as many "
      "and a multiple of 16\n  note: sizes that work: 1, 2, 4");
  EXPECT_EQ(
      refusal(4, 384, 64),
      "mesh.tensor = 4 with numerics.invariant: ranks cannot share 384 features, each as many "
      "in units of 64 and a multiple of 16\n  note: sizes that work: 1, 2");
  EXPECT_EQ(message_of([] {
              check_width({.share = {.index = 0, .of = 3}, .device = at::kCPU}, "features", 7);
            }),
            "no error");
}

}  // namespace
}  // namespace penstock::nn
