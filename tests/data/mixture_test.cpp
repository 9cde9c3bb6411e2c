#include "penstock/files/data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "penstock/core/error.h"
#include "tests/support/message_of.h"

namespace penstock::data {
namespace {

TEST(Mixture, OfOneSourceIsThatSourceInItsOrder) {
  const Mixture mixture({0.3});
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(mixture.place(i).source, 0);
    EXPECT_EQ(mixture.place(i).ordinal, i);
  }
}

TEST(Mixture, GivesEverySourceItsOrdinalsInOrderAcrossPeriods) {
  const Mixture mixture({5, 2, 1});
  std::map<std::int64_t, std::int64_t> next;
  for (std::int64_t i = 0; i < 3 * kMixturePeriod + 17; ++i) {
    const auto [source, ordinal] = mixture.place(i);
    ASSERT_EQ(ordinal, next[source]++) << i;
  }
}

TEST(Mixture, KeepsTheSharesInEveryRunOfSamples) {
  const std::vector<double> weights = {0.7, 0.2, 0.1};
  const Mixture mixture(weights);
  std::vector<double> count(3, 0.0);
  for (std::int64_t i = 0; i < kMixturePeriod; ++i) {
    count[static_cast<std::size_t>(mixture.place(i).source)] += 1;
    for (std::size_t k = 0; k < 3; ++k) {
      // Each source's i-th sample is at most one sample of every source from its place.
      ASSERT_LT(std::fabs(count[k] - weights[k] * static_cast<double>(i + 1)), 3.0) << i;
    }
  }
}

TEST(Mixture, TakesWeightsOfAnyScale) {
  EXPECT_EQ(Mixture({1, 3}).parts(), Mixture({0.25, 0.75}).parts());
  EXPECT_EQ(Mixture({1e308, 1e308}).parts(), Mixture({1e-308, 1e-308}).parts());
  EXPECT_EQ(Mixture({1, 1, 1}).parts(), (std::vector<std::int64_t>{21846, 21845, 21845}));
}

TEST(Mixture, RefusesAWeightThatGetsNoSample) {
  EXPECT_NE(testing_support::message_of([] {
              Mixture({1, 1e-6});
            }).find("data.sources[1].weight = 1e-06: too small beside the others"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock::data
