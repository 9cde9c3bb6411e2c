#include "penstock/runtime/parameters/sum_tree.h"

#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/same_bits.h"

namespace penstock::parameters {
namespace {

using testing_support::same_bits;

std::vector<at::Tensor> numbers(std::int64_t count) {
  std::vector<at::Tensor> tensors;
  for (std::int64_t i = 0; i < count; ++i) tensors.push_back(at::rand({64}) - 0.5);
  return tensors;
}

TEST(SumTree, AddsNeighboursThenTheirSums) {
  const auto x = numbers(6);
  Subtrees subtrees;
  for (std::int64_t i = 0; i < 6; ++i) add(subtrees, {i, 1}, x[static_cast<std::size_t>(i)]);
  EXPECT_TRUE(same_bits(total(subtrees, 6), ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5])));
  EXPECT_EQ(subtrees.size(), 2u) << "0 to 3, 4 and 5: no more is kept than has to be";
}

TEST(SumTree, IsTheSameInEveryOrderAndForEveryDivision) {
  std::mt19937 random(7);
  for (const std::int64_t count : {1, 2, 3, 5, 6, 8, 12, 13}) {
    const auto x = numbers(count);
    Subtrees whole;
    for (std::int64_t i = 0; i < count; ++i) add(whole, {i, 1}, x[static_cast<std::size_t>(i)]);
    for (std::int64_t parts = 1; parts <= count; ++parts) {
      if (count % parts != 0) continue;
      Subtrees together;
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t size = count / parts;
        std::vector<std::int64_t> order;
        for (std::int64_t i = 0; i < size; ++i) order.push_back(part * size + i);
        std::ranges::shuffle(order, random);
        Subtrees mine;
        for (const std::int64_t i : order) add(mine, {i, 1}, x[static_cast<std::size_t>(i)]);
        const auto largest = largest_subtrees(part * size, size);
        ASSERT_EQ(mine.size(), largest.size());
        for (const Subtree& each : largest) together[each] = mine.at(each);
      }
      EXPECT_TRUE(same_bits(total(together, count), total(whole, count)))
          << count << " in " << parts;
    }
  }
}

TEST(SumTree, WhatIsNotThereAddsNothing) {
  const auto x = numbers(4);
  Subtrees subtrees;
  for (std::int64_t i = 0; i < 4; ++i) {
    add(subtrees, {i, 1}, i == 1 ? at::Tensor() : x[static_cast<std::size_t>(i)]);
  }
  EXPECT_TRUE(same_bits(total(subtrees, 4), x[0] + (x[2] + x[3])));
  Subtrees nothing;
  add(nothing, {0, 1}, {});
  add(nothing, {1, 1}, {});
  EXPECT_FALSE(total(nothing, 2).defined());
}

}  // namespace
}  // namespace penstock::parameters
