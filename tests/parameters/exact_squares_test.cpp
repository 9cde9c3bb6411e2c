#include "penstock/runtime/parameters/exact_squares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace penstock::parameters {
namespace {

double total(const ExactSquares& squares) {
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

ExactSquares squares_of(const at::Tensor& tensor) {
  ExactSquares sum{};
  add_squares(sum, tensor);
  return sum;
}

TEST(ExactSquares, AreTheSameForEveryCutAndOrder) {
  const at::Tensor scales = at::randn({301, 64}).mul(20).exp2();
  const at::Tensor all = at::randn({301, 64}) * scales;
  const ExactSquares whole = squares_of(all);
  EXPECT_EQ(squares_of(all.t()), whole);
  for (const std::int64_t dimension : {0, 1}) {
    ExactSquares added{};
    for (const at::Tensor& part : all.split(16, dimension)) {
      const ExactSquares of_part = squares_of(part);
      for (std::size_t i = 0; i < added.size(); ++i) added[i] += of_part[i];
    }
    EXPECT_EQ(added, whole) << dimension;
  }
}

TEST(ExactSquares, AreExactForTheSmallestAndTheLargest) {
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  constexpr float kMost = std::numeric_limits<float>::max();
  const auto square = [](float x) { return static_cast<double>(x) * static_cast<double>(x); };
  for (const float each :
       {kLeast, 3 * kLeast, std::numeric_limits<float>::min(), 1.0F, -0.1F, 16777215.0F, kMost}) {
    EXPECT_EQ(total(squares_of(at::tensor({each}))), square(each)) << each;
  }
  EXPECT_EQ(total(squares_of(at::empty({0}))), 0.0);
}

TEST(ExactSquares, KeepWhatDoublesLose) {
  // 2^60 + 1 - 2^60 has no place in a double.
  const ExactSquares sum = squares_of(at::tensor({std::exp2(30.0F), 1.0F}));
  const ExactSquares large = squares_of(at::tensor({std::exp2(30.0F)}));
  double difference = 0.0;
  for (std::size_t i = 0; i < sum.size(); ++i) difference += sum[i] - large[i];
  EXPECT_EQ(difference, 1.0);
}

TEST(ExactSquares, AreNotFiniteWhereAnElementIsNot) {
  for (const float each :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(std::isfinite(total(squares_of(at::tensor({1.0F, each, 2.0F})))));
  }
}

}  // namespace
}  // namespace penstock::parameters
