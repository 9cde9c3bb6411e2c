// The search's own simulation has the times of simulate(), bit for bit.
#include "penstock/plan/search/clock.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/plan/search/list_schedule.h"
#include "penstock/plan/search/placement.h"
#include "penstock/plan/search/repair.h"
#include "penstock/plan/search/seeds.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "tests/support/schedules.h"

namespace penstock::search {
namespace {

using Draw = testing_support::Random;  // The tests' own, which prints its seed.

simulate::Costs costs_for(Draw& draw, std::int32_t stages) {
  const auto per_stage = [&](std::vector<double> from) {
    std::vector<double> values;
    for (std::int32_t s = 0; s < stages; ++s) values.push_back(draw.one_of(from));
    return verify::PerStage(values);
  };
  simulate::Costs costs{.forward = per_stage({0.3, 1, 1.7}),
                        .input = per_stage({0, 0.7, 1.2}),
                        .weight = per_stage({0.1, 0.8, 2}),
                        .latency = draw.one_of<double>({0, 0.05, 2}),
                        .message = per_stage({1, 3}),
                        .activation = per_stage({0.5, 1, 2}),
                        .keep = draw.one_of<double>({0, 0.4, 1})};
  if (draw.chance(0.4)) costs.bandwidth = draw.one_of<double>({0.7, 8});
  if (draw.chance(0.5)) {
    costs.forward_exchange = draw.one_of<double>({0, 0.1, 0.3});
    costs.input_exchange = costs.input;
  }
  return costs;
}

std::vector<Rank> ranks_for(Draw& draw, std::int32_t ranks, std::int32_t per_rank) {
  const Stages stages{.ranks = ranks, .per_rank = per_rank};
  return draw.chance(0.5) ? in_a_loop(stages) : to_and_fro(stages);
}

bool has_pairs(const schedule::Schedule& schedule) {
  return std::ranges::any_of(schedule.programs, [](const schedule::Program& program) {
    return std::ranges::any_of(program, &schedule::Action::overlaps_next);
  });
}

TEST(SearchClock, HasTheMakespanOfTheSimulationForAnyOrder) {
  Draw draw;
  SCOPED_TRACE(draw.seed_text());
  int pairs = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const std::int32_t ranks = draw.between(1, 5);
    const std::int32_t per_rank = draw.between(1, 3);
    const std::int32_t microbatches = draw.between(1, 9);
    const auto placed = ranks_for(draw, ranks, per_rank);
    const simulate::Costs costs = costs_for(draw, ranks * per_rank);
    const double memory = 2.0 * per_rank + draw.between(0, 8);
    const Problem problem(placed, ranks, microbatches, costs, memory);
    ListScheduler scheduler(problem);
    Random random(static_cast<std::uint64_t>(draw.between(0, 1000000)));
    const Order listed = order_of_block(problem, random_block(problem, random), scheduler);
    Clock clock(problem);
    ASSERT_NE(clock.run(listed), kStuck);
    const Solution repaired = Repair(problem).run(listed, {.changes = 300, .heat = 0.5});
    clock.run(listed);
    EXPECT_LE(repaired.makespan, clock.makespan());
    for (const Order& order : {listed, repaired.order}) {
      clock.run(order);
      const auto verified = verify::VerifiedSchedule::from(
          problem.schedule_of(order),
          {.memory_max = memory, .activation = costs.activation, .keep = costs.keep});
      ASSERT_EQ(clock.makespan(), simulate::simulate(verified, costs).makespan)
          << grid(verified.schedule());
      pairs += has_pairs(verified.schedule());
      EXPECT_TRUE(costs.has_exchanges() || !has_pairs(verified.schedule()));
    }
  }
  EXPECT_GT(pairs, 20);
}

// Three replicas of which one lost a rank: its microbatches take two ways through the others.
TEST(SearchClock, HasTheMakespanOfTheSimulationForChains) {
  Draw draw;
  SCOPED_TRACE(draw.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const std::int32_t stages = draw.between(1, 4);
    const std::int32_t lost = draw.between(0, stages - 1);
    const std::int32_t microbatches = draw.between(4, 12);
    std::vector<Chain> chains(4);
    std::int32_t ranks = 0;
    for (std::int32_t s = 0; s < stages; ++s) {
      const Rank first(ranks++), second(ranks++);
      const Rank third = s == lost ? first : Rank(ranks++);
      const Rank homes[] = {first, second, third, s == lost ? second : third};
      for (std::size_t c = 0; c < 4; ++c) chains[c].rank_of_stage.push_back(homes[c]);
    }
    for (std::int32_t m = 0; m < microbatches; ++m)
      chains[static_cast<std::size_t>(m % 4)].microbatches.push_back(m);
    const simulate::Costs costs = costs_for(draw, stages);
    const double memory = 2.0 + draw.between(0, 4);
    const Problem problem(chains, ranks, costs, memory);
    Targets targets(problem);
    for (std::size_t s = 0; s < problem.stages(); ++s) {
      for (std::size_t m = 0; m < problem.chains().microbatches(s); ++m) {
        for (const Kind kind : kEveryKind) {
          targets.of({static_cast<std::uint16_t>(s), kind}, m) = draw.between(0, 20);
        }
      }
    }
    ListScheduler scheduler(problem);
    const Order listed = scheduler.run(targets, {.patience = draw.one_of<double>({0, 0.5})});
    Clock clock(problem);
    ASSERT_NE(clock.run(listed), kStuck);
    const Solution repaired = Repair(problem).run(listed, {.changes = 100, .heat = 0.5});
    for (const Order& order : {listed, repaired.order}) {
      clock.run(order);
      schedule::Schedule schedule = problem.schedule_of(order);
      schedule.replicas = 3;
      const auto verified = verify::VerifiedSchedule::from(
          schedule, {.memory_max = memory, .activation = costs.activation, .keep = costs.keep});
      ASSERT_EQ(clock.makespan(), simulate::simulate(verified, costs).makespan) << grid(schedule);
    }
  }
}

TEST(SearchClock, TakesTheOrdersOfGeneratorsAndGivesThemBack) {
  const Stages stages{.ranks = 4, .per_rank = 2, .microbatches = 8};
  const Problem problem(to_and_fro(stages), 4, 8, {}, std::nullopt);
  const auto zbv =
      schedule::make_schedule("zbv", {.ranks = 4, .stages_per_rank = 2, .microbatches = 8});
  const auto order = problem.order_of(zbv);
  ASSERT_TRUE(order);
  EXPECT_EQ(problem.schedule_of(*order).programs, zbv.programs);
  const Problem elsewhere(in_a_loop(stages), 4, 8, {}, std::nullopt);
  EXPECT_FALSE(elsewhere.order_of(zbv));
}

TEST(SearchClock, IsStuckWhereRanksWaitForEachOtherOrATurnIsMissing) {
  const SearchStep f0{0, Kind::Forward}, i0{0, Kind::Input}, w0{0, Kind::Weight};
  const SearchStep f1{1, Kind::Forward}, i1{1, Kind::Input}, w1{1, Kind::Weight};
  const Problem problem({Rank(0), Rank(1)}, 2, 1, {}, std::nullopt);
  Clock clock(problem);
  EXPECT_NE(clock.run({{f0, i0, w0}, {f1, i1, w1}}), kStuck);
  EXPECT_EQ(clock.makespan(), 5);
  EXPECT_EQ(clock.run({{i0, f0, w0}, {f1, i1, w1}}), kStuck);
  EXPECT_EQ(clock.run({{f0, i0, w0}, {f1, w1, i1}}), kStuck);
  EXPECT_EQ(clock.run({{f0, i0}, {f1, i1, w1}}), kStuck);
}

}  // namespace
}  // namespace penstock::search
