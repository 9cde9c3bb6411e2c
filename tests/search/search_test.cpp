// The search meets what is known to be the best, keeps to its limits, and says what it proves.
#include "penstock/plan/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/golden.h"

namespace penstock::search {
namespace {

simulate::Costs uneven() { return {.forward = 1, .input = 1.2, .weight = 0.8, .latency = 0.05}; }

double best_generator(std::int32_t ranks, std::int32_t microbatches, double memory_max) {
  double best = std::numeric_limits<double>::infinity();
  for (const schedule::Generator& generator : schedule::registry()) {
    for (const std::int32_t per_rank : {1, 2, 4}) {
      const schedule::Sizes sizes{
          .ranks = ranks, .stages_per_rank = per_rank, .microbatches = microbatches};
      if (generator.purpose != schedule::Purpose::Train) continue;
      if (!generator.objection(sizes).empty()) continue;
      const auto costs = simulate::shared_by_stages(uneven(), per_rank);
      const auto simulation =
          simulate::simulate(verify::VerifiedSchedule::from(generator.make(sizes)), costs);
      if (std::ranges::max(simulation.peak_memory) > memory_max) continue;
      best = std::min(best, simulation.makespan);
    }
  }
  return best;
}

// tests/golden/optimal_small.txt: "2 1 loop 4 2 15", and 0 for any memory.
TEST(Search, MeetsEveryOptimumThatIsKnown) {
  int lines = 0;
  for (const std::string& line : testing_support::golden_lines("optimal_small.txt")) {
    const auto words = split(line, ' ');
    const std::int32_t per_rank = std::stoi(words.at(1));
    Request request{.ranks = std::stoi(words.at(0)),
                    .microbatches = std::stoi(words.at(3)),
                    .stages_per_rank = {per_rank},
                    .placements = {words.at(2) == "v" ? Placement::V : Placement::Loop},
                    .costs = {.forward = 1.0 * per_rank,
                              .input = 1.0 * per_rank,
                              .weight = 1.0 * per_rank,
                              .activation = 1.0 * per_rank}};
    if (words.at(4) != "0") request.memory_max = std::stod(words.at(4));
    const double optimum = std::stod(words.at(5));
    const Result result = search(request, {.rounds = 3});
    EXPECT_EQ(result.simulation.makespan, optimum) << line;
    EXPECT_LE(result.bound.makespan, optimum) << line;
    EXPECT_TRUE(result.is_optimal()) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 124);
}

TEST(Search, IsFasterThanAnyGeneratorWithUnequalCosts) {
  const Request request{.ranks = 4,
                        .microbatches = 8,
                        .stages_per_rank = {4},
                        .placements = {Placement::V},
                        .costs = uneven(),
                        .memory_max = 4};
  const Result result = search(request, {.rounds = 2});
  EXPECT_LT(result.simulation.makespan, best_generator(4, 8, 4));
  EXPECT_LE(std::ranges::max(result.simulation.peak_memory), 4);
  EXPECT_GE(result.simulation.makespan, result.placed_bound.makespan * (1 - 1e-9));
  EXPECT_GE(result.placed_bound.makespan, result.bound.makespan);
}

TEST(Search, FindsTheSameAfterTheSameRounds) {
  const Request request{.ranks = 3,
                        .microbatches = 7,
                        .stages_per_rank = {2},
                        .placements = {Placement::Loop, Placement::V, Placement::Any},
                        .costs = uneven(),
                        .memory_max = 2};
  const Result one = search(request, {.seed = 5, .rounds = 2});
  const Result two = search(request, {.seed = 5, .rounds = 2});
  EXPECT_EQ(one.schedule.schedule(), two.schedule.schedule());
  EXPECT_EQ(one.simulated, two.simulated);
  EXPECT_EQ(one.rounds, 2);
}

TEST(Search, StopsWhereNothingIsFaster) {
  const Result result = search({.ranks = 2, .microbatches = 4});
  EXPECT_TRUE(result.is_optimal());
  EXPECT_EQ(result.gap(), 0);
  EXPECT_EQ(result.simulation.makespan, result.bound.makespan);
}

TEST(Search, KeepsAnAnswerWhereItIsStoppedAtOnce) {
  const Result result = search({.ranks = 4,
                                .microbatches = 8,
                                .stages_per_rank = {1, 2, 4},
                                .costs = uneven(),
                                .memory_max = 4},
                               {.stop = [] { return true; }});
  EXPECT_EQ(result.rounds, 1);
  EXPECT_LE(result.simulation.makespan, best_generator(4, 8, 4));
}

TEST(Search, FusesBackwardsThatCostLessInOnePiece) {
  simulate::Costs costs;
  costs.backward = 1.5;
  const Result result = search(
      {.ranks = 2, .microbatches = 6, .stages_per_rank = {1}, .costs = costs}, {.rounds = 2});
  EXPECT_LT(result.simulation.makespan, 6 * 3 + 1) << "what split backwards take at best";
  EXPECT_GE(result.simulation.makespan, result.bound.makespan);
}

// Qi et al., arXiv 2510.27257, table 1: 1F1B with two stages a rank, ZB-V and their own schedule,
// STP, of which the memory is 3p activations.  What a stage computes in an F, an I and a W is 1
// each, and each F and I has exchanges of 1/4.
TEST(Search, BraidsForwardsAndBackwards) {
  constexpr double kA = 0.25;
  for (const std::int32_t p : {2, 3, 4}) {
    const std::int32_t m = 3 * p;
    const double computing = 2 * m * 3;
    const double interleaved = computing + (p - 1) * (3 + kA) + 2 * m * kA;
    const double zbv = computing + (p - 1) * 2 * kA + 4 * m * kA;
    const double stp = computing + (p - 1) * (1 + kA) + (2 * p + 1) * kA;
    const Request request{.ranks = p,
                          .microbatches = m,
                          .stages_per_rank = {2},
                          .placements = {Placement::V},
                          .costs = {.forward = 2 + 2 * kA,
                                    .input = 2 + 2 * kA,
                                    .weight = 2,
                                    .forward_exchange = 2 * kA,
                                    .input_exchange = 2 * kA,
                                    .activation = 2},
                          .memory_max = 3 * p};
    const Result result = search(request, {.rounds = p});
    EXPECT_LT(result.simulation.makespan, std::min(interleaved, zbv)) << p;
    EXPECT_LE(result.simulation.makespan, stp * 1.015) << p;
    EXPECT_LE(result.bound.makespan, result.simulation.makespan) << p;
    EXPECT_LE(std::ranges::max(result.simulation.peak_memory), 3 * p) << p;
    EXPECT_GE(std::ranges::min(result.simulation.exchange), p * kA) << "the first forwards of all";
  }
}

// A pair may take less than its passes, and a B may compute less than its halves.
TEST(Search, FindsNothingFasterThanItsBound) {
  const simulate::Costs of_halves{.forward = 8,
                                  .input = 4,
                                  .weight = 4,
                                  .forward_exchange = 1,
                                  .input_exchange = 1,
                                  .backward_exchange = 3};
  const simulate::Costs of_pairs{.forward = 5,
                                 .input = 5,
                                 .weight = 4,
                                 .forward_exchange = 1,
                                 .input_exchange = 1,
                                 .overlap = 0.5};
  for (const simulate::Costs& costs : {of_halves, of_pairs}) {
    const Request request{.ranks = 2,
                          .microbatches = 4,
                          .stages_per_rank = {2},
                          .placements = {Placement::V},
                          .costs = costs};
    const Result result = search(request, {.rounds = 3});
    EXPECT_LE(result.bound.makespan, result.simulation.makespan);
  }
}

TEST(Search, PlacesStagesAnywhereWhereThatIsBetter) {
  std::vector<double> forward(8, 1.0);
  forward.front() = forward[1] = 2.0;  // In a loop and in a V they are on two ranks.
  const Request request{.ranks = 4,
                        .microbatches = 4,
                        .stages_per_rank = {2},
                        .placements = {Placement::Any},
                        .costs = {.forward = forward, .input = forward, .weight = forward}};
  const Result result = search(request, {.rounds = 2});
  EXPECT_EQ(result.placement, Placement::Any);
  EXPECT_LE(result.bound.makespan, result.placed_bound.makespan);
}

// An embedding of 0.3 stages and a head of 1.7, on any of the 105 placements.
TEST(Search, ProvesThatNoPlacementIsFaster) {
  const auto stages = [](double of_one) {
    std::vector<double> times(8, of_one);
    times.front() *= 0.3;
    times.back() *= 1.7;
    return times;
  };
  const Request request{
      .ranks = 4,
      .microbatches = 8,
      .stages_per_rank = {2},
      .placements = {Placement::Loop, Placement::V, Placement::Any},
      .costs = {
          .forward = stages(1), .input = stages(1.2), .weight = stages(0.8), .latency = 0.05}};
  const Result result = search(request, {.rounds = 6});
  EXPECT_TRUE(result.is_optimal());
  EXPECT_NEAR(result.simulation.makespan, 52.15, 1e-6);
}

TEST(Search, SaysWhatWouldFitWhereNothingDoes) {
  Request request{.ranks = 4, .microbatches = 8, .memory_max = 0.5};
  try {
    search(request);
    FAIL() << "it fits";
  } catch (const Infeasible& infeasible) {
    EXPECT_NE(std::string(infeasible.what()).find("allow a memory of 1 or more"), std::string::npos)
        << infeasible.what();
    EXPECT_EQ(infeasible.exit_code(), ExitCode::Failure);
  }
  request.memory_max = 1;
  EXPECT_LE(std::ranges::max(search(request, {.rounds = 1}).simulation.peak_memory), 1);
}

TEST(Search, RefusesCostsOfOtherStages) {
  const Request request{.ranks = 2,
                        .microbatches = 2,
                        .stages_per_rank = {1, 4},
                        .costs = {.forward = std::vector<double>{1, 2, 3}}};
  EXPECT_THROW(search(request), ConfigError);
  EXPECT_THROW(search({.ranks = 0}), ConfigError);
  EXPECT_THROW(search({.ranks = 50000, .stages_per_rank = {2}}), ConfigError);
}

}  // namespace
}  // namespace penstock::search
