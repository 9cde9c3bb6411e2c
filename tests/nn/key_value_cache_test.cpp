#include "penstock/nn/key_value_cache.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <vector>

namespace penstock::nn {
namespace {

TEST(KeyValueCache, HasAllTokensInTheirOrder) {
  KeyValueCache cache;
  std::vector<at::Tensor> keys, values;
  for (const std::int64_t count : {5, 1, 1, 4, 1, 30, 1}) {
    keys.push_back(at::rand({2, 3, count, 4}));
    values.push_back(at::rand({2, 3, count, 4}));
    cache.append(keys.back(), values.back());
    EXPECT_TRUE(at::equal(cache.keys(), at::cat(keys, 2)));
    EXPECT_TRUE(at::equal(cache.values(), at::cat(values, 2)));
  }
  EXPECT_EQ(cache.tokens(), 43);
}

TEST(KeyValueCache, IsACopy) {
  KeyValueCache cache;
  const at::Tensor keys = at::rand({1, 1, 2, 4}), values = at::rand({1, 1, 2, 4});
  const at::Tensor before = keys.clone();
  cache.append(keys, values);
  keys.zero_();
  EXPECT_TRUE(at::equal(cache.keys(), before));
}

TEST(KeyValueCache, MovesRarely) {
  KeyValueCache cache;
  const at::Tensor token = at::rand({1, 1, 1, 4});
  int moves = 0;
  const void* place = nullptr;
  for (int i = 0; i < 1000; ++i) {
    cache.append(token, token);
    moves += cache.keys().data_ptr() != place ? 1 : 0;
    place = cache.keys().data_ptr();
  }
  EXPECT_LE(moves, 11);
}

}  // namespace
}  // namespace penstock::nn
