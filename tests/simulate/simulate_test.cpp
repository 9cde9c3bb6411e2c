#include "penstock/simulate/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
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

// In a compute order every value travels as soon as it is made; a message waits for its RECV, too.
TEST(Simulate, MessagesInTheProgramCostTimeOnlyWhereTheyTakeTime) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const auto order = testing_support::random_order(random);
    const auto lowered = schedule::lower_communication(order);
    const auto run_both = [&](const Costs& costs) {
      return std::pair(simulate(VerifiedSchedule::from(order), costs),
                       simulate(VerifiedSchedule::from(lowered), costs));
    };
    const auto [at_once, also_at_once] = run_both({.forward = 1, .backward = 3});
    for (std::int32_t r = 0; r < order.ranks(); ++r) {
      EXPECT_EQ(timeline(at_once, r), timeline(also_at_once, r));
    }
    const auto [plain, with_messages] = run_both({.forward = 1, .backward = 3, .latency = 0.5});
    EXPECT_LE(plain.makespan, with_messages.makespan);
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
      EXPECT_EQ(event.end, event.start + costs.of(event.action));
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

// Costs by their name in the recorded file.
Costs costs_of(std::string_view name, std::int32_t stages) {
  if (name == "unit") return {};
  if (name == "b2") return {.input = 1.25, .weight = 0.75, .latency = 0.125};
  std::vector<double> forward, input, weight, activation;
  for (std::int32_t s = 0; s < stages; ++s) {
    forward.push_back(2 + s % 3);
    input.push_back(3 + 5 * s % 4);
    weight.push_back(1 + 3 * s % 3);
    activation.push_back(1 + s % 2);
  }
  return {.forward = forward,
          .input = input,
          .weight = weight,
          .latency = 0.5,
          .activation = activation,
          .keep = 0.5};
}

TEST(Simulate, AgreesWithAnIndependentSimulatorOnEveryTorchSchedule) {
  const auto lines = testing_support::golden_lines("simulated_torch_orders.txt");
  EXPECT_EQ(lines.size(), 3u * 322u);
  for (const std::string& line : lines) {
    SCOPED_TRACE(line);
    const auto parts = split(line, '|');
    ASSERT_EQ(parts.size(), 6u);
    const auto words = split(trim(parts[0]), ' ');
    ASSERT_EQ(words.size(), 5u);
    const auto verified = VerifiedSchedule::from(
        schedule::make_schedule(words[0], {.ranks = std::stoi(words[1]),
                                           .stages_per_rank = std::stoi(words[2]),
                                           .microbatches = std::stoi(words[3])}));
    const Simulation result = simulate(verified, costs_of(words[4], verified.schedule().stages));
    EXPECT_EQ(shortest(result.makespan), trim(parts[1]));
    EXPECT_EQ(join(result.busy, " "), trim(parts[2]));
    EXPECT_EQ(join(result.span, " "), trim(parts[3]));
    EXPECT_EQ(join(verified.facts().peak_activations, " "), trim(parts[4]));
    EXPECT_EQ(join(result.peak_memory, " "), trim(parts[5]));
  }
}

TEST(Simulate, SplitBackwardSendsItsGradientBeforeItsW) {
  const Simulation result = run({"0F0,0I0,0W0", "1F0,1I0,1W0"}, {.input = 2, .weight = 4});
  EXPECT_EQ(timeline(result, 0), "0F0@0-1 0I0@4-6 0W0@6-10");
  EXPECT_EQ(timeline(result, 1), "1F0@1-2 1I0@2-4 1W0@4-8");
}

TEST(Simulate, BackwardCostsAsItsHalvesUnlessToldOtherwise) {
  EXPECT_EQ(run({"0F0,0B0"}, {.input = 2, .weight = 4}).makespan, 7);
  EXPECT_EQ(run({"0F0,0B0"}, {.input = 2, .weight = 4, .backward = 5}).makespan, 6);
}

TEST(Simulate, CostsMayDifferByStage) {
  const Simulation result = run({"0F0,0B0", "1F0,1B0"}, {.forward = std::vector<double>{1, 3},
                                                         .backward = std::vector<double>{2, 5}});
  EXPECT_EQ(timeline(result, 0), "0F0@0-1 0B0@9-11");
  EXPECT_EQ(timeline(result, 1), "1F0@1-4 1B0@4-9");
}

TEST(Simulate, OverlappedPairStartsWhenBothCanAndHandsOnAtItsEnd) {
  const Simulation result = run({"0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2", "1F0,1B0,1F1,1B1,1F2,1B2"},
                                {.backward = 2, .latency = 0.5});
  EXPECT_EQ(timeline(result, 0), "0F0@0-1 0F1@1-2 0F2@5-6 0B0@6-8 0B1@8-10 0B2@12-14");
  EXPECT_EQ(timeline(result, 1),
            "1F0@1.5-2.5 1B0@2.5-4.5 1F1@4.5-5.5 1B1@5.5-7.5 1F2@8.5-9.5 "
            "1B2@9.5-11.5");
}

TEST(Simulate, MemoryIsHeldFromFToBOrWithItsKeptShareToW) {
  const auto peak = [](const std::string& program, double keep) {
    return run({program}, {.activation = 8, .keep = keep}).peak_memory;
  };
  EXPECT_EQ(peak("0F0,0F1,0B0,0B1", 1), std::vector{16.0});
  EXPECT_EQ(peak("0F0,0I0,0F1,0I1,0W0,0W1", 1), std::vector{16.0});
  EXPECT_EQ(peak("0F0,0I0,0F1,0I1,0W0,0W1", 0.25), std::vector{10.0});
  EXPECT_EQ(peak("0F0,0F1", 1), std::vector{0.0}) << "nothing is kept without backwards";
}

TEST(Simulate, ManyRanksTakeTimeInProportion) {
  const auto verified =
      VerifiedSchedule::from(schedule::make_schedule("1f1b", {.ranks = 20'000, .microbatches = 2}));
  EXPECT_EQ(simulate(verified).makespan, 3 * (20'000 + 1));
}

TEST(Simulate, FreeActionsTakeNoTime) {
  const Simulation result = run({"0F0,0B0", "1F0,1B0"}, {.forward = 0, .backward = 0});
  EXPECT_EQ(result.makespan, 0);
  EXPECT_EQ(result.events.size(), 4u);
}

// The largest makespan over the smallest share that costs can make is far from the end of a double.
TEST(Simulate, AllThatExtremeCostsMakeIsFinite) {
  const auto extreme = std::vector<double>{1e30, 1e-30};
  const auto check = [&](const Costs& costs) {
    const Simulation result = run({"0F0,0I0,0F1,0I1,0W0,0W1", "1F0,1I0,1F1,1I1,1W0,1W1"}, costs);
    EXPECT_TRUE(std::isfinite(1e9 * result.makespan)) << result.makespan;
    EXPECT_TRUE(std::isfinite(result.mean_bubble() + result.span_bubble()));
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(std::isfinite(result.bubble(Rank(rank)) + result.peak_memory[rank]));
    }
  };
  check({.forward = extreme, .overlap = 1e30, .message = 1e30, .bandwidth = 1e-30});
  check({.forward = extreme, .input = 1e-30, .latency = 1e30, .activation = extreme});
  check({.forward = 0, .input = 0, .weight = 0});
}

// What simulate() says of costs, without the head of the line.
std::string refusal(const Costs& costs) {
  try {
    run({"0F0,0B0", "1F0,1B0"}, costs);
  } catch (const ConfigError& error) {
    return error.message();
  }
  return "";
}

TEST(Simulate, CostsThatAreNoTimesAreRefused) {
  const std::string range = "; expected 0, or a number from 1e-30 to 1e30";
  EXPECT_EQ(refusal({.forward = -1}), "costs: forward: -1" + range);
  EXPECT_EQ(refusal({.forward = std::vector<double>{1, -1}, .keep = 1.5}),
            "costs: forward stage 1: -1" + range +
                "\n"
                "costs: keep: 1.5; expected a share from 0 to 1");
  EXPECT_EQ(refusal({.latency = 1e31}), "costs: latency: 1e+31" + range);
  EXPECT_EQ(refusal({.bandwidth = 0}), "costs: bandwidth: 0; expected a number from 1e-30 to 1e30");
  EXPECT_EQ(refusal({.weight = std::vector<double>{1, 2, 3}}),
            "costs: weight: 3 stages, the schedule has 2; give 1 number or 2");
}

}  // namespace
}  // namespace penstock::simulate
