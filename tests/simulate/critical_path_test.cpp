// Who waits for what, and what the makespan is made of.
#include <gtest/gtest.h>

#include <map>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "tests/support/schedules.h"

namespace penstock::simulate {
namespace {

using testing_support::Random;
using testing_support::rows;
using verify::VerifiedSchedule;

Simulation run(const std::vector<std::string>& programs, const Costs& costs) {
  return simulate(VerifiedSchedule::from(rows(programs)), costs);
}

std::string text(const std::vector<Event>& events) {
  std::vector<std::string> texts;
  for (const Event& event : events) {
    texts.push_back(str(event.action, "@", event.start, "-", event.end));
  }
  return join(texts, " ");
}

TEST(CriticalPath, GoesThroughMessagesAndTheRanksOwnOrder) {
  EXPECT_EQ(text(run({"0F0,0B0,0F1,0B1", "1F0,1B0,1F1,1B1"}, {.latency = 0.25}).critical_path),
            "0F0@0-1 0SEND_F0@1-1.25 1F0@1.25-2.25 1B0@2.25-4.25 1SEND_B0@4.25-4.5 0B0@4.5-6.5 "
            "0F1@6.5-7.5 0SEND_F1@7.5-7.75 1F1@7.75-8.75 1B1@8.75-10.75 1SEND_B1@10.75-11 "
            "0B1@11-13");
}

TEST(CriticalPath, GoesThroughGathersAndReductions) {
  EXPECT_EQ(text(run({"0UNSHARD,1UNSHARD,0F0,1F0,1B0,0B0,1REDUCE_GRAD,0REDUCE_GRAD"},
                     {.gather = 3, .reduce = 1})
                     .critical_path),
            "0UNSHARD@0-3 1UNSHARD@3-6 1F0@6-7 1B0@7-9 0B0@9-11 1REDUCE_GRAD@11-12 "
            "0REDUCE_GRAD@12-13");
}

TEST(CriticalPath, GoesThroughTheQueueOfALink) {
  EXPECT_EQ(
      text(run({"0F0,0F1", "1F0,1F1"}, {.latency = 1, .message = 4, .bandwidth = 1}).critical_path),
      "0F0@0-1 0SEND_F0@1-6 0SEND_F1@5-10 1F1@10-11");
}

TEST(CriticalPath, GoesThroughTheOverlappedHalfAheadOfAnother) {
  EXPECT_EQ(text(run({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}, {}).critical_path),
            "0F0@0-1 0F1@1-2 0B0@2-4 0B1@4-6");
}

// Without bandwidths each event starts at the very end of the one ahead of it.
TEST(CriticalPath, IsWithoutGapsFromZeroToTheMakespan) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 200; ++trial) {
    schedule::Schedule schedule = testing_support::with_shards(
        testing_support::random_order(random, {.overlap = 0.3, .split = 0.4}));
    const bool lowered = random.chance(0.6);
    if (lowered) schedule = schedule::lower_communication(schedule);
    const verify::Options options{
        .communication = random.one_of<verify::Communication>(
            {verify::Communication::Overlapped, verify::Communication::Blocking})};
    if (!verify::verify(schedule, options).diagnostics.empty()) continue;
    const Costs costs{.input = 1.5,
                      .weight = 0.5,
                      .overlap = 0.75,
                      .latency = random.one_of<double>({0, 0.25}),
                      .gather = random.one_of<double>({0, 2}),
                      .reduce = random.one_of<double>({0, 3})};
    const Simulation result = simulate(VerifiedSchedule::from(schedule, options), costs);
    ASSERT_FALSE(result.critical_path.empty());
    double time = 0.0;
    for (const Event& event : result.critical_path) {
      ASSERT_EQ(event.start, time) << text(result.critical_path) << "\n" << grid(schedule);
      time = event.end;
    }
    ASSERT_EQ(time, result.makespan);
  }
}

TEST(Waits, AreByWhatCameLast) {
  const Simulation result = run({"0F0,0B0,0F1,0B1", "1F0,1B0,1F1,1B1"}, {.latency = 0.25});
  ASSERT_EQ(result.waits.size(), 2u);
  EXPECT_EQ(result.waits[0].rank, Rank(0));
  EXPECT_EQ(result.waits[0].op, schedule::Op::Backward);
  EXPECT_EQ(result.waits[0].peer, Rank(1));
  EXPECT_EQ(result.waits[0].time, 7);
  EXPECT_EQ(result.waits[0].count, 2);
  EXPECT_EQ(result.waits[1].rank, Rank(1));
  EXPECT_EQ(result.waits[1].op, schedule::Op::Forward);
  EXPECT_EQ(result.waits[1].time, 4.75);
  EXPECT_EQ(str(*result.events[1].awaited), "1B0");
  EXPECT_EQ(result.events[1].waited, 3.5);
  EXPECT_FALSE(result.events[2].awaited) << "0F1 has all it needs";
}

TEST(Waits, NameTheSendWhereThereIsOneAndTheIOfASplitBackward) {
  const Simulation split = run({"0F0,0I0,0W0", "1F0,1I0,1W0"}, {});
  EXPECT_EQ(str(*split.events[1].awaited), "1I0");
  const Simulation lowered = run({"0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"}, {});
  EXPECT_EQ(str(*lowered.events[1].awaited), "1SEND_B0");
  const Simulation gathered = run({"0UNSHARD,0F0,0B0"}, {.gather = 2});
  EXPECT_EQ(str(*gathered.events[0].awaited), "0UNSHARD");
  ASSERT_EQ(gathered.waits.size(), 1u);
  EXPECT_EQ(gathered.waits[0].peer, Rank(0));
}

// A rank computes, waits for something, or is through.
TEST(Waits, AddUpToTheTimeThatARankIsIdle) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const auto schedule = schedule::lower_communication(
        testing_support::random_order(random, {.overlap = 0.3, .split = 0.4}));
    const Simulation result = simulate(VerifiedSchedule::from(schedule), {.latency = 0.25});
    std::map<std::int32_t, double> waited;
    for (const Wait& wait : result.waits) waited[wait.rank.value] += wait.time;
    std::map<std::int32_t, double> end;
    for (const Event& event : result.events) end[event.rank.value] = event.end;
    for (std::size_t r = 0; r < result.busy.size(); ++r) {
      const auto rank = static_cast<std::int32_t>(r);
      EXPECT_EQ(waited[rank] + result.busy[r], end[rank]);
    }
  }
}

TEST(Bubble, IsOfTheMakespanOrOfTheLongestSpan) {
  const Simulation result = simulate(
      VerifiedSchedule::from(schedule::make_schedule("zb_h2", {.ranks = 4, .microbatches = 8})));
  EXPECT_EQ(result.makespan, 27);
  EXPECT_EQ(result.bubble(Rank(0)), 1 - 24.0 / 27);
  EXPECT_EQ(result.span_bubble(), 0.0);
}

}  // namespace
}  // namespace penstock::simulate
