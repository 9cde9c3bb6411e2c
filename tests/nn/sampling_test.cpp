#include "penstock/nn/sampling.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "penstock/core/error.h"

namespace penstock::nn {
namespace {

constexpr int kDraws = 4000;

// Logits whose softmax is these probabilities.
at::Tensor logits_of(const std::vector<double>& probabilities) {
  return at::tensor(probabilities, at::kDouble).log() + 3;
}

std::map<std::int64_t, double> shares(const at::Tensor& logits, const SamplingOptions& options) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  std::map<std::int64_t, double> shares;
  for (int i = 0; i < kDraws; ++i) shares[next_token(logits, options, generator)] += 1.0 / kDraws;
  return shares;
}

// Five standard deviations of a share of so many draws: 5 x 0.5 / sqrt(4000).
void expect_shares(const std::map<std::int64_t, double>& found,
                   const std::map<std::int64_t, double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [token, share] : expected) EXPECT_NEAR(found.at(token), share, 0.04) << token;
}

TEST(NextToken, WithoutATemperatureIsTheFirstOfTheLikeliest) {
  expect_shares(shares(logits_of({0.2, 0.3, 0.1, 0.3, 0.1}), {}), {{1, 1.0}});
}

TEST(NextToken, IsDrawnByItsProbability) {
  const at::Tensor logits = logits_of({0.1, 0.6, 0.3});
  expect_shares(shares(logits, {.temperature = 1}), {{0, 0.1}, {1, 0.6}, {2, 0.3}});
  // At temperature 1/2 probabilities are squared: 1, 36 and 9 of 46.
  expect_shares(shares(logits, {.temperature = 0.5}), {{0, 1 / 46.}, {1, 36 / 46.}, {2, 9 / 46.}});
}

TEST(NextToken, IsOneOfTheTopK) {
  const at::Tensor logits = logits_of({0.1, 0.4, 0.2, 0.3});
  expect_shares(shares(logits, {.temperature = 1, .top_k = 2}), {{1, 4 / 7.}, {3, 3 / 7.}});
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_k = 9}).size(), 4);
}

TEST(NextToken, IsOneOfTheFewestWithProbabilityP) {
  const at::Tensor logits = logits_of({0.1, 0.4, 0.2, 0.3});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.65}), {{1, 4 / 7.}, {3, 3 / 7.}});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.75}),
                {{1, 4 / 9.}, {3, 3 / 9.}, {2, 2 / 9.}});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 1e-9}), {{1, 1.0}});
  // Top-k comes first: of 4 and 3 parts of 7, the first has more than half.
  expect_shares(shares(logits, {.temperature = 1, .top_k = 2, .top_p = 0.55}), {{1, 1.0}});
}

TEST(NextToken, OfLogitsThatAreNotFiniteIsAnError) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(next_token(at::tensor({0.0, nan}), {}, generator), NumericsError);
}

}  // namespace
}  // namespace penstock::nn
