#include "penstock/plan/render/simulated_timeline.h"

#include <gtest/gtest.h>

#include "penstock/schedule/generators/generators.h"
#include "tests/support/schedules.h"

namespace penstock::render {
namespace {

using schedule::Schedule;
using testing_support::rows;

Timeline timeline_of(const Schedule& schedule, const simulate::Costs& costs = {}) {
  const auto verified = verify::VerifiedSchedule::from(schedule);
  return simulated_timeline(verified, simulate::simulate(verified, costs));
}

const std::vector<Bar>& bars(const Timeline& timeline, std::size_t row) {
  return timeline.rows[row].lanes[0].bars;
}

// "0F1 1..2", and what it waited for.
std::string text(const Timeline& timeline, const Bar& bar) {
  std::string text = str(bar.action, ' ', bar.start, "..", bar.end);
  if (!bar.waited_for) return text;
  const BarPlace& place = *bar.waited_for;
  const Row& row = timeline.rows[static_cast<std::size_t>(place.row)];
  return text + str(" after ", row.lanes[static_cast<std::size_t>(place.lane)]
                                   .bars[static_cast<std::size_t>(place.bar)]
                                   .action);
}

std::vector<std::string> texts(const Timeline& timeline, std::size_t row) {
  std::vector<std::string> lines;
  for (const Bar& bar : bars(timeline, row)) lines.push_back(text(timeline, bar));
  return lines;
}

using Lines = std::vector<std::string>;

TEST(SimulatedTimeline, EveryActionHasItsBarAndWhatItWaitedFor) {
  const Timeline timeline = timeline_of(rows({"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"}));
  EXPECT_EQ(texts(timeline, 0),
            (Lines{"0F0 0..1", "0F1 1..2", "0B0 4..6 after 1B0", "0B1 7..9 after 1B1"}));
  EXPECT_EQ(texts(timeline, 1), (Lines{"1F0 1..2 after 0F0", "1B0 2..4", "1F1 4..5", "1B1 5..7"}));
  EXPECT_EQ(timeline.end, 9);
}

TEST(SimulatedTimeline, AGradientIsWaitedForFromTheHalfThatMakesIt) {
  const Timeline timeline = timeline_of(rows({"0F0,0I0,0W0", "1F0,1I0,1W0"}));
  EXPECT_EQ(texts(timeline, 0), (Lines{"0F0 0..1", "0I0 3..4 after 1I0", "0W0 4..5"}));
}

TEST(SimulatedTimeline, APairWaitsForTheLaterOfItsTwoInputs) {
  // 1F1 is there early; 1B0 waits for the slow stage 2.
  const Timeline timeline =
      timeline_of(rows({"0F0,0F1,0B0,0B1", "1F0,(1F1;1B0)OVERLAP_F_B,1B1", "2F0,2B0,2F1,2B1"}),
                  {.forward = std::vector<double>{1, 1, 5}});
  EXPECT_EQ(texts(timeline, 1), (Lines{"1F0 1..2 after 0F0", "1F1 9..10 after 2B0", "1B0 10..12",
                                       "1B1 19..21 after 2B1"}));
}

TEST(SimulatedTimeline, TitleAndNotesSayWhatItIs) {
  const Timeline one =
      timeline_of(schedule::make_schedule("1f1b", {.ranks = 4, .microbatches = 8}));
  EXPECT_EQ(one.title, "1f1b, 4 ranks, 8 microbatches");
  EXPECT_EQ(one.notes,
            (Lines{"makespan 33", "bubble 27.3%", "peak activations by rank: 4, 3, 2, 1"}));
  EXPECT_EQ(one.rows[3].name, "rank 3");
  const Timeline two = timeline_of(
      schedule::make_schedule("zbv", {.ranks = 2, .stages_per_rank = 2, .microbatches = 1}));
  EXPECT_EQ(two.title, "zbv, 2 ranks, 4 stages, 1 microbatch");
  EXPECT_EQ(two.rows[0].stages, (std::vector<StageId>{StageId(0), StageId(3)}));
  const Timeline many =
      timeline_of(schedule::make_schedule("1f1b", {.ranks = 20, .microbatches = 30}));
  EXPECT_EQ(many.notes.back(), "peak activations by rank: 1 to 20");
}

TEST(SimulatedTimeline, MemoryRisesAsAForwardStartsAndFallsAsABackwardEnds) {
  const Timeline timeline = timeline_of(rows({"0F0,0F1,0B0,0B1"}), {.activation = 1.5});
  EXPECT_EQ(timeline.rows[0].memory, (std::vector<Level>{{0, 1.5}, {1, 3}, {4, 1.5}, {6, 0}}));
}

TEST(SimulatedTimeline, ASplitBackwardKeepsAShareFromIToW) {
  const Timeline timeline = timeline_of(rows({"0F0,0I0,0F1,0I1,0W0,0W1"}), {.keep = 0.25});
  EXPECT_EQ(timeline.rows[0].memory,
            (std::vector<Level>{{0, 1}, {2, 0.25}, {2, 1.25}, {4, 0.5}, {5, 0.25}, {6, 0}}));
}

TEST(SimulatedTimeline, EvaluationKeepsNothing) {
  const Timeline timeline =
      timeline_of(schedule::make_schedule("forward_only", {.ranks = 2, .microbatches = 3}));
  EXPECT_TRUE(timeline.rows[0].memory.empty());
}

}  // namespace
}  // namespace penstock::render
