// Exchanges inside of layers, of which a step waits for those that nothing hides.
//
// The bubbles and exposed exchanges of 1F1B with two stages a rank and of ZB-V are those of Qi et
// al., arXiv 2510.27257, table 1: f, b, w are what one stage computes in an F, an I and a W, and
// each F and I has exchanges of a.  Bubbles of ZB-V count from a rank's own start.
#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/simulate/lower_bounds.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "tests/support/schedules.h"

namespace penstock::simulate {
namespace {

using testing_support::rows;
using verify::VerifiedSchedule;

constexpr double kF = 1.0, kB = 1.0, kW = 1.0, kA = 0.25;

Costs costs() {
  return {.forward = kF + kA,
          .input = kB + kA,
          .weight = kW,
          .forward_exchange = kA,
          .input_exchange = kA};
}

VerifiedSchedule generated(const char* name, std::int32_t ranks, std::int32_t microbatches) {
  return VerifiedSchedule::from(schedule::find_generator(name).make(
      {.ranks = ranks, .stages_per_rank = 2, .microbatches = microbatches}));
}

TEST(Exchanges, InterleavedOneFOneBWaitsForThoseOfForwards) {
  for (const std::int32_t p : {2, 3, 4, 8}) {
    for (const std::int32_t m : {2 * p, 5 * p}) {
      const auto result = simulate(generated("interleaved_1f1b", p, m), costs());
      const double bubble = (p - 1) * (kF + kA + kB + kW);
      EXPECT_NEAR(result.makespan, 2 * m * (kF + kB + kW + kA) + bubble, 1e-9) << p << " " << m;
      for (const double exchange : result.exchange) EXPECT_NEAR(exchange, 2 * m * kA, 1e-9);
    }
  }
}

TEST(Exchanges, ZbvWaitsForAll) {
  for (const std::int32_t p : {2, 3, 4, 8}) {
    const std::int32_t m = 3 * p;
    const auto result = simulate(generated("zbv", p, m), costs());
    for (const double exchange : result.exchange) EXPECT_NEAR(exchange, 4 * m * kA, 1e-9);
    const double bubble = (p - 1) * (kF + 2 * kA + kB - 2 * kW);
    EXPECT_NEAR(std::ranges::max(result.span), 2 * m * (kF + kB + kW + 2 * kA) + bubble, 1e-9) << p;
  }
}

Simulation run(const std::vector<std::string>& programs, const Costs& costs) {
  return simulate(VerifiedSchedule::from(rows(programs)), costs);
}

TEST(Exchanges, PassesOfAPairHideThemOfEachOther) {
  const Costs costs{
      .forward = 3, .input = 5, .weight = 2, .forward_exchange = 1, .input_exchange = 3};
  // A B is 5 + 2 - 2: its W hides 2 of 3.  The F of a pair hides the third.
  const auto whole = run({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}, costs);
  EXPECT_EQ(whole.makespan, 3 + (2 + 4) + 5);
  EXPECT_EQ(whole.exchange, (std::vector<double>{1 + 0 + 1}));
  // I computes 2, and hides 1; F computes 2, and hides 2 of 3.
  const auto half = run({"0F0,(0F1;0I0)OVERLAP_F_B,0W0,0B1"}, costs);
  EXPECT_EQ(half.makespan, 3 + (2 + 3) + 2 + 5);
  EXPECT_EQ(half.exchange, (std::vector<double>{1 + 1 + 1}));
  const auto weights = run({"0F0,0I0,(0F1;0W0)OVERLAP_F_B,0B1"}, costs);
  EXPECT_EQ(weights.makespan, 3 + 5 + (2 + 2) + 5);
  EXPECT_EQ(weights.exchange, (std::vector<double>{1 + 3 + 0 + 1}));
}

TEST(Exchanges, OfAPairLongerThanWhatIsBesideAreWaitedFor) {
  const Costs costs{
      .forward = 10, .input = 1, .weight = 1, .forward_exchange = 9, .input_exchange = 0};
  const auto result = run({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}, costs);
  EXPECT_EQ(result.makespan, 10 + (1 + 9 - 2 + 2) + 2);
  EXPECT_EQ(result.exchange, (std::vector<double>{9 + 7}));
}

TEST(Exchanges, BoundsOfPairsHoldWhereAllIsHidden) {
  for (const std::int32_t p : {2, 4}) {
    for (const char* name : {"dualpipev", "interleaved_1f1b", "zbv"}) {
      const auto schedule = generated(name, p, 3 * p);
      const double makespan = simulate(schedule, costs()).makespan;
      EXPECT_LE(highest(lower_bounds(schedule, costs())).makespan, makespan * (1 + 1e-12)) << name;
    }
  }
  const auto paired = VerifiedSchedule::from(rows({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}));
  EXPECT_EQ(highest(lower_bounds(paired, costs())).makespan, 2 * (kF + kB + kW));
}

TEST(Exchanges, AreAPartOfTheirPass) {
  const auto refusal = [](const Costs& costs) {
    try {
      run({"0F0,0B0"}, costs);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal({.forward_exchange = 2}),
            "costs: forward_exchange: 2; it is a part of forward, which is 1");
  EXPECT_EQ(refusal({.input = 0.5, .input_exchange = 1}),
            "costs: input_exchange: 1; it is a part of input, which is 0.5");
  // What a B without a number of its own takes, or waits, follows from its halves.
  EXPECT_EQ(refusal({.input = 5, .backward = 1, .input_exchange = 4}),
            "costs: backward_exchange: 3; it is a part of backward, which is 1");
  EXPECT_EQ(refusal({.input = 4, .weight = 4, .input_exchange = 4, .backward_exchange = 7}),
            "costs: backward_exchange: 7; it is a part of backward, which is 4");
}

}  // namespace
}  // namespace penstock::simulate
