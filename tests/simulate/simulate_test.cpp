#include "penstock/simulate/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/passes/passes.h"
#include "tests/support/golden.h"
#include "tests/support/schedules.h"

namespace penstock::simulate {
namespace {

using testing_support::Random;
using testing_support::rows;
using verify::VerifiedSchedule;

// "0F0@0-1 0B0@3-5": the events of one rank.
std::string timeline(const Simulation& simulation, std::int32_t rank) {
  std::vector<std::string> events;
  for (const Event& event : simulation.events) {
    if (event.rank.value != rank) continue;
    events.push_back(str(event.action, "@", event.start, "-", event.end));
  }
  return join(events, " ");
}

Simulation run(const std::vector<std::string>& programs, const Costs& costs) {
  return simulate(VerifiedSchedule::from(rows(programs)), costs);
}

TEST(Simulate, TwoRanksByHand) {
  const Simulation result =
      run({"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"}, {.forward = 1, .backward = 2});
  EXPECT_EQ(timeline(result, 0), "0F0@0-1 0F1@1-2 0B0@4-6 0B1@7-9");
  EXPECT_EQ(timeline(result, 1), "1F0@1-2 1B0@2-4 1F1@4-5 1B1@5-7");
  EXPECT_EQ(result.makespan, 9);
  EXPECT_EQ(result.busy, (std::vector{6.0, 6.0}));
}

TEST(Simulate, LatencyDelaysWhatCrossesRanks) {
  const Simulation result =
      run({"0F0,0B0", "1F0,1B0"}, {.forward = 1, .backward = 2, .latency = 0.25});
  EXPECT_EQ(timeline(result, 0), "0F0@0-1 0B0@4.5-6.5");
  EXPECT_EQ(timeline(result, 1), "1F0@1.25-2.25 1B0@2.25-4.25");
}

TEST(Simulate, StagesOfOneRankHandOverAtOnce) {
  const Simulation result = run({"0F0,1F0,1B0,0B0"}, {.forward = 1, .backward = 2, .latency = 100});
  EXPECT_EQ(timeline(result, 0), "0F0@0-1 1F0@1-2 1B0@2-4 0B0@4-6");
}

TEST(Simulate, MessagesInTheProgramChangeNothing) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const auto order = testing_support::random_order(random);
    const Costs costs{.forward = 1, .backward = 3, .latency = 0.5};
    const Simulation plain = simulate(VerifiedSchedule::from(order), costs);
    const Simulation lowered =
        simulate(VerifiedSchedule::from(schedule::lower_communication(order)), costs);
    EXPECT_EQ(plain.makespan, lowered.makespan);
    for (std::int32_t r = 0; r < order.ranks(); ++r) {
      EXPECT_EQ(timeline(plain, r), timeline(lowered, r));
    }
  }
}

TEST(Simulate, EveryActionStartsAsSoonAsRankAndInputAllow) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const auto order = testing_support::random_order(random);
    const auto verified = VerifiedSchedule::from(order);
    const Costs costs{.forward = 2, .backward = 3, .latency = 0.25};
    const Simulation result = simulate(verified, costs);
    std::map<std::string, double> end;
    for (const Event& event : result.events) end[str(event.action)] = event.end;
    std::map<std::int32_t, double> free;  // By rank.
    for (const Event& event : result.events) {
      const bool forward = event.action.op == schedule::Op::Forward;
      const std::int32_t from = event.action.stage.value + (forward ? -1 : 1);
      double arrival = 0;
      if (from >= 0 && from < order.stages) {
        arrival = end.at(str(from, forward ? "F" : "B", *event.action.microbatch));
        if (verified.rank_of(StageId(from)) != event.rank) arrival += costs.latency;
      }
      EXPECT_EQ(event.start, std::max(free[event.rank.value], arrival)) << event.action;
      EXPECT_EQ(event.end, event.start + (forward ? costs.forward : costs.backward));
      free[event.rank.value] = event.end;
    }
  }
}

TEST(Simulate, AgreesWithAnIndependentSimulator) {
  const auto lines = testing_support::golden_lines("simulated_torch_programs.txt");
  EXPECT_EQ(lines.size(), 92u);
  for (const std::string& line : lines) {
    SCOPED_TRACE(line);
    const auto parts = split(line, '|');
    ASSERT_EQ(parts.size(), 5u);
    const auto words = split(trim(parts[0]), ' ');
    const auto verified = VerifiedSchedule::from(schedule::make_schedule(
        words[0], {.ranks = std::stoi(words[1]), .microbatches = std::stoi(words[2])}));
    const Simulation result =
        simulate(verified, {.backward = std::stod(words[3]), .latency = std::stod(words[4])});
    EXPECT_EQ(shortest(result.makespan), trim(parts[1]));
    EXPECT_EQ(join(result.busy, " "), trim(parts[2]));
    std::vector<double> span;
    for (std::size_t r = 0; r < result.busy.size(); ++r) {
      const auto mine = [&](const Event& event) { return event.rank == Rank(r); };
      const auto first = std::ranges::find_if(result.events, mine);
      const auto last = std::find_if(result.events.rbegin(), result.events.rend(), mine);
      span.push_back(last->end - first->start);
    }
    EXPECT_EQ(join(span, " "), trim(parts[3]));
    EXPECT_EQ(join(verified.facts().peak_activations, " "), trim(parts[4]));
  }
}

TEST(Simulate, FreeActionsTakeNoTime) {
  const Simulation result = run({"0F0,0B0", "1F0,1B0"}, {.forward = 0, .backward = 0});
  EXPECT_EQ(result.makespan, 0);
  EXPECT_EQ(result.events.size(), 4u);
}

TEST(SimulateDeathTest, CostsThatAreNoTimesAreABug) {
  EXPECT_DEATH(run({"0F0"}, {.forward = -1}), "cost -1");
  EXPECT_DEATH(run({"0F0"}, {.latency = std::numeric_limits<double>::infinity()}), "cost inf");
  EXPECT_DEATH(run({"0F0"}, {.backward = std::numeric_limits<double>::quiet_NaN()}), "cost -?nan");
}

}  // namespace
}  // namespace penstock::simulate
