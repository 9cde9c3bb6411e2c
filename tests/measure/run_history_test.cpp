#include "penstock/plan/measure/run_history.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"

namespace penstock::measure {
namespace {

using enum RunEventKind;

RunEvent started(std::int64_t step, std::int64_t ranks = 4) {
  return {.kind = Started, .step = step, .ranks = ranks};
}
RunEvent resumed(std::int64_t step, std::int64_t lost_steps) {
  return {.kind = Resumed, .step = step, .folder = "f", .lost_steps = lost_steps};
}
RunEvent saved(std::int64_t step) { return {.kind = Saved, .step = step}; }
RunEvent failed(std::int64_t step) {
  return {.kind = Failed,
          .step = step,
          .reason = "rank 3 was killed by SIGKILL; last seen at step 58, in forward",
          .exit_code = 4};
}
RunEvent stopped(std::int64_t step) {
  return {.kind = Stopped, .step = step, .reason = "as asked", .exit_code = 75};
}
RunEvent finished(std::int64_t step) { return {.kind = Finished, .step = step}; }
const RunEvent kRestarting = {.kind = Restarting, .ranks = 4, .attempt = 1};

std::string text_of(const std::vector<RunEvent>& events) {
  return join(lines_of(history_of(events)), "\n");
}

TEST(RunHistory, OfNoEventsIsEmpty) {
  EXPECT_TRUE(history_of({}).parts.empty());
  EXPECT_EQ(text_of({}), "");
}

TEST(RunHistory, OfAnUndisturbedRun) {
  EXPECT_EQ(text_of({started(0), saved(40), saved(80), finished(80)}),
            "saved after steps 40, 80\nfinished after step 80");
  EXPECT_EQ(text_of({started(0), finished(5)}), "finished after step 5");
  EXPECT_EQ(text_of({started(0), saved(2)}), "saved after step 2\nruns, or ended without a word");
}

TEST(RunHistory, OfARunThatWasKilledAndCameBack) {
  const std::vector<RunEvent> events = {
      started(0), saved(40),   failed(57),  kRestarting,    started(40), resumed(40, 17), saved(80),
      failed(81), kRestarting, started(80), resumed(80, 1), saved(120),  finished(120)};
  EXPECT_EQ(text_of(events),
            "saved after steps 40, 80, 120\n"
            "started again 2 times:\n"
            "  after step 57, 17 steps done again: rank 3 was killed by SIGKILL\n"
            "  after step 81, 1 step done again: rank 3 was killed by SIGKILL\n"
            "finished after step 120");
}

TEST(RunHistory, ACauseIsCutWithWhatItHasOpened) {
  const RunPart part = {.reason = "rank 0 stopped (process 9 is stopped; last seen at step 1)"};
  EXPECT_EQ(short_reason(part), "rank 0 stopped (process 9 is stopped)");
}

TEST(RunHistory, WithoutACheckpointAllStepsAreDoneAgain) {
  const RunHistory history =
      history_of(std::vector{started(0), failed(9), kRestarting, started(0)});
  ASSERT_EQ(history.parts.size(), 2U);
  EXPECT_EQ(history.parts[1].steps_again, 9);
  EXPECT_EQ(history.parts[1].folder, "");
}

TEST(RunHistory, AnEndWithoutAWordIsKnownByTheStartThatFollows) {
  const RunHistory history =
      history_of(std::vector{started(0), saved(40), started(40), resumed(40, 3)});
  EXPECT_EQ(history.parts[0].end, PartEnd::Unsaid);
  EXPECT_EQ(break_text(history, 0), "after step 43, 3 steps done again: it ended without a word");
}

TEST(RunHistory, AStopIsNoFailureAndMayGoOnWithOtherRanks) {
  EXPECT_EQ(text_of({started(0), saved(9), stopped(9), started(9, 2), resumed(9, 0), finished(20)}),
            "saved after step 9\n"
            "started again 1 time:\n"
            "  after step 9, with 2 ranks instead of 4: stopped, as asked\n"
            "finished after step 20");
  EXPECT_EQ(text_of({started(0), stopped(9)}), "stopped after step 9, as asked");
}

TEST(RunHistory, WhatFailsAfterTheEndHasFailed) {
  const RunHistory history = history_of(std::vector{started(0), finished(9), failed(9)});
  ASSERT_EQ(history.parts.size(), 1U);
  EXPECT_EQ(end_text(history), "failed after step 9: rank 3 was killed by SIGKILL (exit code 4)");
}

TEST(RunHistory, RanksThatFailBeforeTheFirstStepAreAPart) {
  const RunHistory history =
      history_of(std::vector{failed(0), kRestarting, started(0), finished(1)});
  EXPECT_EQ(break_text(history, 0),
            "after step 0: rank 3 was killed by SIGKILL while the ranks started");
}

TEST(RunHistory, RanksThatFailBeforeTheFirstStepDoNotEndThePartBefore) {
  RunEvent failed_start = failed(9);
  failed_start.before_ready = true;
  const RunHistory history = history_of(
      std::vector{started(0), finished(9), failed_start, kRestarting, started(9), finished(12)});
  EXPECT_EQ(join(lines_of(history), "\n"),
            "started again 1 time:\n"
            "  after step 9: finished\n"
            "  after step 9: rank 3 was killed by SIGKILL while the ranks started\n"
            "finished after step 12");
}

TEST(RunHistory, AStopInThePauseFollowsTheFailureAndIsNoStart) {
  EXPECT_EQ(text_of({started(0), failed(5), kRestarting, stopped(5)}),
            "not started again:\n"
            "  after step 5: rank 3 was killed by SIGKILL\n"
            "stopped after step 5, as asked");
}

TEST(RunHistory, LostStepsThatAnyEventKnowsOfAreDoneAgain) {
  const RunHistory known_by_failure =
      history_of(std::vector{started(4), failed(19), kRestarting, started(4), resumed(4, 0)});
  EXPECT_EQ(known_by_failure.parts[1].steps_again, 15);
  RunEvent from_the_beginning = started(0);
  from_the_beginning.lost_steps = 7;
  const RunHistory known_by_start = history_of(std::vector{started(0), from_the_beginning});
  EXPECT_EQ(known_by_start.parts[1].steps_again, 7);
  EXPECT_EQ(known_by_start.parts[0].last_step, 7);
}

TEST(RunHistory, DamagedCheckpointsThatWerePassedOverAreCounted) {
  RunEvent event = resumed(40, 50);
  event.passed_over = {"80: damaged"};
  const RunHistory history = history_of(std::vector{started(0), failed(90), started(40), event});
  EXPECT_EQ(
      break_text(history, 0),
      "after step 90, 50 steps done again, 1 damaged checkpoint passed over: rank 3 was killed "
      "by SIGKILL");
}

TEST(RunHistory, ManySavesAndFailuresAreCounted) {
  std::vector<RunEvent> events = {started(0)};
  for (std::int64_t step = 10; step <= 110; step += 10) events.push_back(saved(step));
  events.push_back(saved(110));
  for (std::int64_t step = 1; step <= 5; ++step) {
    events.push_back({.kind = SaveFailed,
                      .step = step,
                      .reason = str("step ", step, " is not saved: no\033 space")});
  }
  EXPECT_EQ(text_of(events),
            "saved 11 times, after steps 10 to 110\n"
            "not saved after step 1: no  space\n"
            "not saved after step 2: no  space\n"
            "not saved after step 3: no  space\n"
            "not saved another 2 times\n"
            "runs, or ended without a word");
}

}  // namespace
}  // namespace penstock::measure
