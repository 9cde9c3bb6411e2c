#include "penstock/plan/render/measured_timeline.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"
#include "penstock/plan/render/simulated_timeline.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/recordings.h"

namespace penstock::render {
namespace {

// Without those that go on at the level before: the end of an I, here, which frees nothing.
std::vector<Level> changes(const std::vector<Level>& levels) {
  std::vector<Level> result;
  for (const Level& level : levels) {
    if (result.empty() || result.back().memory != level.memory) result.push_back(level);
  }
  return result;
}

// A step that went exactly as simulated is the simulated timeline.
TEST(MeasuredTimeline, OfAStepAsSimulatedHasTheBarsWaitsAndMemoryOfTheSimulation) {
  for (const std::string& name : std::vector<std::string>{"1f1b", "zbv"}) {
    const auto schedule =
        verify::VerifiedSchedule::from(schedule::lower_communication(schedule::make_schedule(
            name, {.ranks = 2, .stages_per_rank = name == "1f1b" ? 1 : 2, .microbatches = 4})));
    const simulate::Costs costs{.forward = 1, .input = 2, .weight = 3, .latency = 0.5};
    const measure::Recording recording = testing_support::recording_of(schedule, costs);
    const Timeline measured =
        measured_timeline(schedule, measure::measured_step(recording, schedule, 1, 0));
    const Timeline simulated = simulated_timeline(schedule, simulate::simulate(schedule, costs));
    EXPECT_EQ(measured.title, "measured: step 1");
    EXPECT_EQ(measured.unit, "ms");
    EXPECT_EQ(measured.end, simulated.end);
    ASSERT_EQ(measured.rows.size(), simulated.rows.size());
    for (std::size_t r = 0; r < measured.rows.size(); ++r) {
      const Row& row = measured.rows[r];
      EXPECT_EQ(row.stages, simulated.rows[r].stages);
      EXPECT_EQ(row.memory, changes(simulated.rows[r].memory));
      const std::vector<Bar>& bars = simulated.rows[r].lanes[0].bars;
      ASSERT_EQ(row.lanes[0].bars.size(), bars.size());
      for (std::size_t i = 0; i < bars.size(); ++i) {
        const Bar& bar = row.lanes[0].bars[i];
        EXPECT_EQ(to_string(bar.action), to_string(bars[i].action));
        EXPECT_EQ(bar.start, bars[i].start) << bar.action;
        EXPECT_EQ(bar.end, bars[i].end) << bar.action;
        EXPECT_EQ(bar.waited_for, bars[i].waited_for) << bar.action;
      }
    }
  }
}

TEST(MeasuredTimeline, WhatIsLeftToReduceHasALaneWithSeveralReplicas) {
  const auto schedule =
      verify::VerifiedSchedule::from(schedule::parse_csv("0F0,0B0,0REDUCE_GRAD\n", "one"));
  measure::Recording recording = testing_support::recording_of(schedule, simulate::Costs{});
  const auto timeline = [&] {
    return measured_timeline(schedule, measure::measured_step(recording, schedule, 1, 0));
  };
  EXPECT_EQ(timeline().rows[0].lanes.size(), 1U);
  recording.ranks.push_back({.at = {.data = 1}});
  recording.events.back().end_ns += 1'000'000;
  const Timeline of_two = timeline();
  const auto& lanes = of_two.rows[0].lanes;
  ASSERT_EQ(lanes.size(), 3U);
  EXPECT_EQ(lanes[2].name, "reduce");
  ASSERT_EQ(lanes[2].bars.size(), 1U);
  EXPECT_EQ(lanes[2].bars[0].start, 3);
  EXPECT_EQ(lanes[2].bars[0].end, 4);
}

TEST(MeasuredTimeline, ExchangesAreBesideWhatAskedForThem) {
  const auto schedule = verify::VerifiedSchedule::from(schedule::parse_csv("0F0,0B0\n", "one"));
  measure::Recording recording =
      testing_support::recording_of(schedule, {.forward = 4, .input = 4, .weight = 4});
  const auto add = [&](const std::string& name, std::int64_t start, std::int64_t end) {
    recording.exchanges.push_back({.step = 1,
                                   .name = name,
                                   .start_ns = start * 1'000'000,
                                   .begun_ns = start * 1'000'000 + 1,
                                   .awaited_ns = end * 1'000'000 - 2,
                                   .end_ns = end * 1'000'000});
  };
  add("first", 1, 2);
  add("under way, too", 6, 7);
  add("second", 5, 8);
  add("third", 8, 9);
  add("of a pass that took turns with another", 9, 10);
  recording.exchanges.back().action = schedule::parse_action("0F0");
  const measure::MeasuredStep step = measure::measured_step(recording, schedule, 1, 0);
  EXPECT_NEAR(step.exchanges[0][0].held(), 3e-6, 1e-9);
  EXPECT_NEAR(step.exchanges[0][0].beside(), 1 - 3e-6, 1e-9);
  const Timeline timeline = measured_timeline(schedule, step);
  const auto& lanes = timeline.rows[0].lanes;
  std::vector<std::string> bars;
  for (std::size_t lane = 1; lane < lanes.size(); ++lane) {
    for (const Bar& bar : lanes[lane].bars) {
      bars.push_back(str(lane, ' ', bar.name, ' ', bar.action, ' ', bar.start, '-', bar.end));
    }
  }
  EXPECT_EQ(bars,
            (std::vector<std::string>{"1 first 0F0 1-2", "1 second 0B0 5-8", "1 third 0B0 8-9",
                                      "1 of a pass that took turns with another 0F0 9-10",
                                      "2 under way, too 0B0 6-7"}));
}

}  // namespace
}  // namespace penstock::render
