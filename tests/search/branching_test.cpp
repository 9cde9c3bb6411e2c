// What is proven holds: no order is faster than a bound, and the optimum is met by an order.
#include "penstock/plan/search/branching.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/plan/search/list_schedule.h"
#include "penstock/plan/search/placement.h"
#include "penstock/plan/search/repair.h"
#include "penstock/plan/search/search.h"
#include "penstock/plan/search/seeds.h"
#include "tests/support/golden.h"
#include "tests/support/random.h"

namespace penstock::search {
namespace {

using Draw = testing_support::Random;

constexpr std::size_t kManySteps = 1'000'000;
constexpr std::int64_t kMuchWork = 300'000'000;
constexpr double kShade = 1e-7;

verify::PerStage by_stage(Draw& draw, std::int32_t stages, const std::vector<double>& from) {
  std::vector<double> values;
  for (std::int32_t s = 0; s < stages; ++s) values.push_back(draw.one_of(from));
  return verify::PerStage(values);
}

simulate::Costs costs_for(Draw& draw, std::int32_t stages) {
  simulate::Costs costs{.forward = by_stage(draw, stages, {0.3, 1, 1.7}),
                        .input = by_stage(draw, stages, {0, 0.7, 1.2}),
                        .weight = by_stage(draw, stages, {0.1, 0.8, 2}),
                        .latency = draw.one_of<double>({0, 0.05, 2}),
                        .message = by_stage(draw, stages, {1, 3}),
                        .activation = by_stage(draw, stages, {0.5, 1, 2}),
                        .keep = draw.one_of<double>({0, 0.4, 1})};
  if (draw.chance(0.3)) costs.bandwidth = draw.one_of<double>({0.7, 8});
  return costs;
}

// Of all orders, whatever the parts of a search think of them.
double optimum(const Problem& problem, Order order, std::size_t rank, Clock& clock) {
  if (rank == order.size()) return clock.run(order) == kStuck ? kStuck : clock.makespan();
  std::vector<SearchStep>& turns = order[rank];
  const auto key = [](SearchStep turn) {
    return kKinds * turn.stage + static_cast<std::size_t>(turn.kind);
  };
  std::ranges::sort(turns, {}, key);
  double best = kStuck;
  do {
    if (fits(problem, turns)) best = std::min(best, optimum(problem, order, rank + 1, clock));
  } while (std::ranges::next_permutation(turns, {}, key).found);
  return best;
}

double optimum(const Problem& problem) {
  Order order(problem.ranks());
  for (std::size_t s = 0; s < problem.stages(); ++s) {
    for (std::size_t m = 0; m < problem.microbatches(); ++m) {
      for (const Kind kind : kEveryKind) {
        order[problem.chains().rank_of(s)].push_back({static_cast<std::uint16_t>(s), kind});
      }
    }
  }
  Clock clock(problem);
  return optimum(problem, std::move(order), 0, clock);
}

TEST(Branching, CountsTheStatesOfARank) {
  const Problem any({Rank(0)}, 1, 8, {}, std::nullopt);
  EXPECT_EQ(RankStates::of(any, 0, kManySteps)->count(), 165U);
  const Problem little({Rank(0)}, 1, 8, {}, 1.0);
  EXPECT_EQ(RankStates::of(little, 0, kManySteps)->count(), 3U * 8 + 1);
  EXPECT_FALSE(RankStates::of(any, 0, 100));
}

TEST(Branching, ProvesTheOptimumOfAllOrders) {
  Draw draw;
  SCOPED_TRACE(draw.seed_text());
  for (int trial = 0; trial < 40; ++trial) {
    const std::int32_t ranks = trial < 36 ? 2 : 3;
    simulate::Costs costs = costs_for(draw, ranks);
    costs.bandwidth.reset();  // Proofs leave out that messages wait for their link.
    std::vector<Rank> placed;
    for (std::int32_t rank = 0; rank < ranks; ++rank) placed.emplace_back(rank);
    const Problem problem(placed, ranks, 2, costs, draw.one_of<double>({2, 3, 8}));
    const double best = optimum(problem);
    ASSERT_NE(best, kStuck);
    const auto ways = Ways::of(problem, kManySteps);
    const Attempt sooner = attempt(*ways, best * (1 - kShade), {.steps = kMuchWork});
    EXPECT_EQ(sooner.answer, Answer::No) << trial;
    const Attempt met = attempt(*ways, best * (1 + kShade), {.steps = kMuchWork});
    ASSERT_EQ(met.answer, Answer::Yes) << trial;
    Clock clock(problem);
    ASSERT_NE(clock.run(*met.order), kStuck);
    EXPECT_NEAR(clock.makespan(), best, 2 * best * kShade);
  }
}

// A bound above any order's makespan would be wrong; so every order there is may be tried on it.
TEST(Branching, NeverRefusesTheTimeOfAnOrder) {
  Draw draw;
  SCOPED_TRACE(draw.seed_text());
  for (int trial = 0; trial < 60; ++trial) {
    const std::int32_t ranks = draw.between(1, 4);
    const std::int32_t per_rank = draw.between(1, 3);
    Stages stages{.ranks = ranks,
                  .per_rank = per_rank,
                  .microbatches = draw.between(1, 6),
                  .costs = costs_for(draw, ranks * per_rank)};
    if (draw.chance(0.6)) stages.memory_max = 2.0 * per_rank + draw.between(0, 6);
    const auto placed = draw.chance(0.5) ? in_a_loop(stages) : to_and_fro(stages);
    const Problem problem(placed, ranks, stages.microbatches, stages.costs, stages.memory_max);
    ListScheduler scheduler(problem);
    Random random(draw.bits());
    std::vector<Order> orders = generated_orders(problem);
    orders.push_back(order_of_block(problem, random_block(problem, random), scheduler));
    orders.push_back(Repair(problem).run(orders.back(), {.changes = 2000, .heat = 0.5}).order);
    const auto ways = Ways::of(problem, kManySteps);
    if (!ways) continue;
    Clock clock(problem);
    for (const Order& order : orders) {
      ASSERT_NE(clock.run(order), kStuck);
      ASSERT_NE(attempt(*ways, clock.makespan(), {}).answer, Answer::No) << trial;
    }
  }
}

// tests/golden/optimal_small.txt: "2 1 loop 4 2 15", and 0 for any memory.
TEST(Branching, ProvesEveryOptimumThatIsKnown) {
  int lines = 0;
  for (const std::string& line : testing_support::golden_lines("optimal_small.txt")) {
    const auto words = split(line, ' ');
    const std::int32_t per_rank = std::stoi(words.at(1));
    const Stages stages{.ranks = std::stoi(words.at(0)),
                        .per_rank = per_rank,
                        .microbatches = std::stoi(words.at(3))};
    std::optional<double> memory;
    if (words.at(4) != "0") memory = std::stod(words.at(4));
    const Problem problem(words.at(2) == "v" ? to_and_fro(stages) : in_a_loop(stages), stages.ranks,
                          stages.microbatches, {}, memory);
    const auto ways = Ways::of(problem, kManySteps);
    ASSERT_TRUE(ways) << line;
    const double optimum = std::stod(words.at(5));
    EXPECT_EQ(attempt(*ways, optimum - 0.5, {.steps = kMuchWork}).answer, Answer::No) << line;
    const Attempt met = attempt(*ways, optimum, {.steps = kMuchWork});
    EXPECT_EQ(met.answer, Answer::Yes) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 124);
}

TEST(Branching, KnowsEqualMicrobatches) {
  simulate::Costs costs{.forward = std::vector<double>{1, 2}};
  EXPECT_TRUE(has_equal_microbatches(Problem({Rank(0), Rank(1)}, 2, 3, costs, std::nullopt)));
  costs.forward = verify::PerStage(std::vector<std::vector<double>>{{1, 1, 1}, {2, 2, 3}});
  EXPECT_FALSE(has_equal_microbatches(Problem({Rank(0), Rank(1)}, 2, 3, costs, std::nullopt)));
}

TEST(Branching, FindsAllPlacements) {
  EXPECT_EQ(all_placements({.ranks = 2, .per_rank = 2}, 128)->size(), 3U);
  EXPECT_EQ(all_placements({.ranks = 4, .per_rank = 2}, 128)->size(), 105U);
  EXPECT_EQ(all_placements({.ranks = 5, .per_rank = 1}, 128)->size(), 1U);
  EXPECT_FALSE(all_placements({.ranks = 5, .per_rank = 2}, 128));
  simulate::Costs costs;
  costs.links.push_back({.from = Rank(0), .to = Rank(1), .latency = 1});
  EXPECT_FALSE(all_placements({.ranks = 2, .per_rank = 2, .costs = costs}, 128));
}

}  // namespace
}  // namespace penstock::search
