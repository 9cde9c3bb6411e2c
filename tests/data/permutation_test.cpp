#include "penstock/files/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace penstock::data {
namespace {

std::vector<std::int64_t> all_of(const Permutation& permutation) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < permutation.size(); ++i) all.push_back(permutation.at(i));
  return all;
}

TEST(Permutation, TakesEveryNumberOnceForEverySize) {
  for (std::int64_t size = 1; size <= 700; ++size) {
    for (const std::uint64_t key : {0ULL, 1ULL, 0x9E3779B97F4A7C15ULL}) {
      std::vector<std::int64_t> all = all_of(Permutation(size, key));
      std::ranges::sort(all);
      for (std::int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(all[static_cast<std::size_t>(i)], i) << "size " << size << " key " << key;
      }
    }
  }
}

TEST(Permutation, IsAnotherForAnotherKeyAndTheSameForTheSame) {
  const auto one = all_of(Permutation(10'007, 5));
  const auto other = all_of(Permutation(10'007, 6));
  EXPECT_EQ(one, all_of(Permutation(10'007, 5)));
  std::int64_t same = 0, fixed = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    same += one[i] == other[i] ? 1 : 0;
    fixed += one[i] == static_cast<std::int64_t>(i) ? 1 : 0;
  }
  EXPECT_LT(same, 10);  // One is expected of random ones, and 10 has probability 1e-7.
  EXPECT_LT(fixed, 10);
}

// Where element 0 goes over many keys: chi-square of 64 equal cells, 63 degrees of freedom, whose
// 1 - 1e-6 quantile is 129.
TEST(Permutation, PutsAnElementAnywhereWithEqualChance) {
  constexpr int kKeys = 64'000;
  for (const std::int64_t place : {0, 31, 63}) {
    std::vector<double> count(64, 0.0);
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      count[static_cast<std::size_t>(Permutation(64, key).at(place))] += 1;
    }
    double chi = 0;
    for (const double each : count) chi += (each - kKeys / 64.0) * (each - kKeys / 64.0);
    EXPECT_LT(chi / (kKeys / 64.0), 129) << place;
  }
}

// Neighbours come to lie apart: the differences have no preferred value.
TEST(Permutation, SpreadsNeighbours) {
  const Permutation permutation(1 << 20, 11);
  std::int64_t near = 0;
  for (std::int64_t i = 0; i + 1 < 100'000; ++i) {
    near += std::abs(permutation.at(i + 1) - permutation.at(i)) < 1024 ? 1 : 0;
  }
  EXPECT_GT(near, 100);  // 195 are expected.
  EXPECT_LT(near, 300);
}

TEST(Permutation, WorksFarBeyondMemory) {
  const Permutation permutation(std::int64_t{1} << 62, 3);
  const std::int64_t last = permutation.at((std::int64_t{1} << 62) - 1);
  EXPECT_GE(last, 0);
  EXPECT_LT(last, std::int64_t{1} << 62);
  EXPECT_NE(permutation.at(0), permutation.at(1));
}

// DO NOT CHANGE: a run that goes on would see other samples.
TEST(Permutation, IsTheSameInEveryVersion) {
  EXPECT_EQ(all_of(Permutation(10, 1234)),
            (std::vector<std::int64_t>{4, 7, 6, 2, 0, 3, 5, 8, 9, 1}));
}

}  // namespace
}  // namespace penstock::data
