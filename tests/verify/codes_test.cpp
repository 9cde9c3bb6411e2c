// One bad schedule per code of verify, with the exact code, place and message.
#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/verify/verify.h"
#include "tests/support/schedules.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Purpose;
using schedule::Schedule;
using testing_support::rows;

// The first line of each diagnostic.
std::string objections(const Schedule& schedule, const Options& options = {}) {
  std::vector<std::string> lines;
  for (const Diagnostic& diagnostic : verify(schedule, options).diagnostics) {
    lines.push_back(split(to_string(diagnostic), '\n')[0]);
  }
  return join(lines, "\n");
}

TEST(Verify, BadStage) {
  EXPECT_EQ(objections(rows({"0RECV_F0,0F0,0B0"})),
            "rank 0 step 0: 0RECV_F0 has no stage at its other end [S001]");
  EXPECT_EQ(objections(rows({"0F0,0SEND_F0,0B0"})),
            "rank 0 step 1: 0SEND_F0 has no stage at its other end [S001]");
  Schedule schedule = rows({"0F0,1F0,1B0,0B0"});
  schedule.stages = 1;
  EXPECT_EQ(objections(schedule),
            "rank 0 step 1: 1F0 is out of range [S001]\n"
            "rank 0 step 2: 1B0 is out of range [S001]");
  schedule.programs[0] = {{.stage = StageId(-1), .op = Op::Forward, .microbatch = Microbatch(0)}};
  EXPECT_EQ(objections(schedule), "rank 0 step 0: -1F0 is out of range [S001]");
}

TEST(Verify, BadMicrobatch) {
  Schedule schedule = rows({"0F0,0F1,0B0,0B1"});
  schedule.microbatches = 1;
  EXPECT_EQ(objections(schedule),
            "rank 0 step 1: 0F1 is out of range [S002]\n"
            "rank 0 step 3: 0B1 is out of range [S002]");
  schedule.programs[0] = {{.stage = StageId(0), .op = Op::Forward, .microbatch = Microbatch(-1)},
                          {.stage = StageId(0), .op = Op::Backward},
                          {.stage = StageId(0), .op = Op::Unshard, .microbatch = Microbatch(0)}};
  EXPECT_EQ(objections(schedule),
            "rank 0 step 0: 0F-1 is out of range [S002]\n"
            "rank 0 step 1: 0B is out of range [S002]\n"
            "rank 0 step 2: 0UNSHARD0 is out of range [S002]");
}

TEST(Verify, StageOnTwoRanks) {
  EXPECT_EQ(objections(rows({"0F0,0B0,0F1", "1F0,1B0,1F1,1B1,0B1"})),
            "rank 1 step 4: 0B1 runs stage 0 [S003]");
}

TEST(Verify, Missing) {
  EXPECT_EQ(objections(rows({"0F0,0F1,0B1"})), "0B0 is missing [S004]");
  EXPECT_EQ(objections(rows({"0F0,0B0", "2F0,2B0"})), "stage 1 runs nowhere [S004]");
  EXPECT_EQ(objections(rows({"0F0,0B0", "", "1F0,1B0"})), "rank 1 has no actions [S004]");
  EXPECT_EQ(objections(Schedule{}), "the schedule is empty [S004]");
}

// Three ranks with four microbatches, and one cell that is not what it should be.
Schedule with_cell(const std::string& right, const std::string& wrong) {
  std::vector<std::string> programs = {"0F0,0F1,0F2,0I0,0F3,0I1,0W0,0I2,0W1,0I3,0W2,0W3",
                                       "1F0,1F1,1I0,1F2,1I1,1F3,1W0,1I2,1W1,1I3,1W2,1W3",
                                       "2F0,2I0,2F1,2I1,2W0,2F2,2I2,2W1,2F3,2I3,2W2,2W3"};
  for (std::string& program : programs) {
    const std::size_t at = program.find(right);
    if (at != std::string::npos) program.replace(at, right.size(), wrong);
  }
  return rows(programs);
}

// What stands where it should be, instead: any other number, far away, next to the last, or one
// that is there.
TEST(Verify, OneMistypedNumberIsOneObjectionAtItsCell) {
  EXPECT_EQ(objections(with_cell("1F3", "1F9")),
            "rank 1 step 5: 1F9 is the only action of microbatch 9 [S002]");
  EXPECT_EQ(objections(with_cell("2F0", "7F0")),
            "rank 2 step 0: 7F0 is the only action of stage 7 [S001]");
  const std::vector<std::string> cells = {"0F0", "0F3", "0I1", "0W2", "1F0", "1F2",
                                          "1I3", "1W0", "2F1", "2I0", "2W3"};
  for (const std::string& cell : cells) {
    for (int stage = 0; stage < 12; ++stage) {
      for (int microbatch = 0; microbatch < 12; ++microbatch) {
        const std::string wrong = str(stage, cell[1], microbatch);
        const bool one_is_right = (wrong.substr(0, 1) == cell.substr(0, 1) && stage < 10) !=
                                  (str(microbatch) == cell.substr(2));
        if (!one_is_right) continue;
        const auto found = verify(with_cell(cell, wrong)).diagnostics;
        ASSERT_EQ(found.size(), 1u) << cell << " " << wrong << ": " << to_string(found[0]);
        const std::string text = to_string(found[0]);
        EXPECT_NE(text.find(wrong), std::string::npos) << text;
        EXPECT_NE(text.find(str("is ", cell, " meant, which is missing?")), std::string::npos)
            << cell << " " << wrong << ": " << text;
      }
    }
  }
}

// The file's sizes may also be huge.
TEST(Verify, AHugeNumberStandsAlone) {
  EXPECT_EQ(objections(with_cell("1F3", "1F16777215")),
            "rank 1 step 5: 1F16777215 is the only action of microbatch 16777215 [S002]");
}

TEST(Verify, AStageLivesWhereMostOfItIs) {
  EXPECT_EQ(objections(rows({"1F0,0F0,0B0", "1F1,1B1,1B0", "0F1,0B1"})),
            "rank 0 step 0: 1F0 runs stage 1 [S003]\n"
            "rank 2 step 0: 0F1 runs stage 0 [S003]\n"
            "rank 2 step 1: 0B1 runs stage 0 [S003]");
}

TEST(Verify, NumbersThatNobodyHasAreOneObjection) {
  EXPECT_EQ(objections(rows({"0F0,0F9,0B0,0B9", "1F0,1F9,1B0,1B9"})),
            "microbatches 1 to 8 run nowhere [S004]");
  EXPECT_EQ(objections(rows({"0F0,0B0", "5F0,5B0"})), "stages 1 to 4 run nowhere [S004]");
}

TEST(Verify, SizesFarBeyondTheActionsAreOneObjection) {
  EXPECT_EQ(objections(rows({"0F0,16777215F16777215"})),
            "16777216 stages x 16777216 microbatches need 281474976710656 forwards, the schedule "
            "has 2 actions in all [S004]");
}

TEST(Verify, Duplicate) {
  EXPECT_EQ(objections(rows({"0F0,0B0,0F0"})), "rank 0 step 2: 0F0 runs again [S005]");
  EXPECT_EQ(objections(rows({"0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD"})),
            "rank 0 step 3: 0REDUCE_GRAD runs again [S005]");
  EXPECT_EQ(objections(rows({"0F0,0B0,0REDUCE_GRAD0,0REDUCE_GRAD0"})),
            "rank 0 step 3: 0REDUCE_GRAD0 runs again [S005]");
  EXPECT_EQ(objections(rows({"0F0,0F1,0B0,0REDUCE_GRAD0,0B1,0REDUCE_GRAD"})),
            "rank 0 step 3: 0REDUCE_GRAD0 runs beside 0REDUCE_GRAD [S005]");
  EXPECT_EQ(objections(rows({"0F0,0B0", "1F0,1B0,0F0"})), "rank 1 step 2: 0F0 runs again [S005]");
}

TEST(Verify, UnexpectedBackward) {
  EXPECT_EQ(objections(rows({"0F0,0REDUCE_GRAD"})),
            "rank 0 step 1: 0REDUCE_GRAD in a forward-only schedule [S006]");
  EXPECT_EQ(objections(rows({"0F0,0SEND_F0,0RECV_B0", "1RECV_F0,1F0,1SEND_B0"})),
            "rank 0 step 2: 0RECV_B0 in a forward-only schedule [S006]\n"
            "rank 1 step 2: 1SEND_B0 in a forward-only schedule [S006]");
  Schedule schedule = rows({"0F0,0B0"});
  schedule.purpose = Purpose::Forward;
  EXPECT_EQ(objections(schedule), "rank 0 step 1: 0B0 in a forward-only schedule [S006]");
}

TEST(Verify, BadOverlap) {
  EXPECT_EQ(objections(rows({"(0F0;0B0)OVERLAP_F_B"})),
            "rank 0 step 0: 0F0 overlaps 0B0, which needs it [S007]");
  EXPECT_EQ(objections(rows({"0F0,(1F0;0B0)OVERLAP_F_B,1B0"})),
            "rank 0 step 1: 1F0 overlaps 0B0, which needs it [S007]\n"
            "rank 0 step 2: 0B0 runs before 1B0 [S012]");
  Schedule schedule = rows({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"});
  EXPECT_EQ(objections(schedule), "");
  EXPECT_EQ(objections(rows({"0F0,(0F1;0I0)OVERLAP_F_B,(0F2;0W0)OVERLAP_F_B,0B1,0B2"})), "");
  EXPECT_EQ(objections(rows({"0F0,(1F0;0I0)OVERLAP_F_B,1B0,0W0"})),
            "rank 0 step 1: 1F0 overlaps 0I0, which needs it [S007]\n"
            "rank 0 step 2: 0I0 runs before 1B0 [S012]");
  schedule.programs[0].insert(schedule.programs[0].begin() + 2, {StageId(0), Op::Unshard});
  schedule.programs[0].insert(schedule.programs[0].begin(), {StageId(0), Op::Unshard});
  EXPECT_EQ(objections(schedule),
            "rank 0 step 2: 0F1 overlaps no backward [S007]\n"
            "rank 0 step 3: 0UNSHARD finds stage 0 unsharded [S043]");
  schedule = rows({"0F0,0B0,0F1,0B1"});
  schedule.programs[0].back() = {
      .stage = StageId(0), .op = Op::Forward, .overlaps_next = true, .microbatch = Microbatch(1)};
  schedule.programs[0][2] = {.stage = StageId(0), .op = Op::Backward, .microbatch = Microbatch(1)};
  EXPECT_EQ(objections(schedule),
            "rank 0 step 2: 0B1 runs before 0F1 [S012]\n"
            "rank 0 step 3: 0F1 overlaps no backward [S007]");
}

TEST(Verify, DeadlockOfAnOverlappedPairThatWaitsForItself) {
  // Without the overlap, 0F1 runs and then 0B0 when rank 1 has it.
  EXPECT_EQ(objections(rows({"0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1"})), "");
  const auto verdict = verify(rows({"0F0,(0F1;0B0)OVERLAP_F_B,0B1", "1F0,1F1,1B0,1B1"}));
  ASSERT_EQ(verdict.diagnostics.size(), 1u);
  EXPECT_EQ(to_string(verdict.diagnostics[0]),
            "rank 0 step 1: 0F1 waits for itself: deadlock [S030]\n"
            "  note: rank 0: 0F0 [0F1] 0B0 0B1\n"
            "  note: rank 0 step 1: 0F1 waits for 1B0 of rank 1\n"
            "  note: rank 1 step 1: 1F1 waits for 0F1 of rank 0\n"
            "  note: on one of these ranks, move what is waited for ahead of what waits");
}

TEST(Verify, TwoBackwards) {
  EXPECT_EQ(objections(rows({"0F0,0B0,0W0"})), "rank 0 step 2: 0W0 runs beside 0B0 [S008]");
  EXPECT_EQ(objections(rows({"0F0,0I0,0B0"})), "rank 0 step 1: 0I0 runs beside 0B0 [S008]");
}

TEST(Verify, SplitBackwardIsMissingByHalves) {
  EXPECT_EQ(objections(rows({"0F0,0I0"})), "0W0 is missing [S004]");
  EXPECT_EQ(objections(rows({"0F0,0W0"})), "0I0 is missing [S004]");
  EXPECT_EQ(objections(rows({"0F0,0F1,0I0,0W0"})), "0B1 is missing [S004]");
}

TEST(Verify, SplitBackwardComesAfterItsInputs) {
  EXPECT_EQ(objections(rows({"0F0,1F0,1I0,0I0,0W0,1W0"})), "");
  EXPECT_EQ(objections(rows({"0F0,1F0,1B0,0I0,0W0"})), "") << "one stage split, one not";
  EXPECT_EQ(objections(rows({"0F0,1F0,1I0,0B0,1W0"})), "");
  EXPECT_EQ(objections(rows({"0I0,0F0,0W0"})), "rank 0 step 0: 0I0 runs before 0F0 [S012]");
  EXPECT_EQ(objections(rows({"0F0,0W0,0I0"})), "rank 0 step 1: 0W0 runs before 0I0 [S012]");
  EXPECT_EQ(objections(rows({"0F0,1F0,0I0,1I0,0W0,1W0"})),
            "rank 0 step 2: 0I0 runs before 1I0 [S012]");
}

TEST(Verify, SplitBackwardSendsWhatTheIMakes) {
  EXPECT_EQ(objections(rows({"0F0,0SEND_F0,0RECV_B0,0I0,0W0", "1RECV_F0,1F0,1I0,1SEND_B0,1W0"})),
            "");
  EXPECT_EQ(objections(rows({"0F0,0SEND_F0,0RECV_B0,0I0,0W0", "1RECV_F0,1F0,1SEND_B0,1I0,1W0"})),
            "rank 1 step 2: 1SEND_B0 runs before 1I0 [S012]");
}

TEST(Verify, DeadlockNamesTheIOfASplitBackward) {
  const auto verdict = verify(rows({"0F0,0B0,0F1,0B1", "1F0,1F1,1I0,1W0,1B1"}));
  ASSERT_EQ(verdict.diagnostics.size(), 1u);
  EXPECT_EQ(verdict.diagnostics[0].notes[1], "rank 0 step 1: 0B0 waits for 1I0 of rank 1");
}

TEST(Verify, ActivationsLiveToTheirW) {
  EXPECT_EQ(verify(rows({"0F0,0I0,0F1,0I1,0W0,0W1"})).facts.peak_activations,
            std::vector<std::int32_t>{2});
  EXPECT_EQ(verify(rows({"0F0,0I0,0W0,0F1,0I1,0W1"})).facts.peak_activations,
            std::vector<std::int32_t>{1});
}

TEST(Verify, NotUnsharded) {
  EXPECT_EQ(objections(rows({"0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0"})), "");
  EXPECT_EQ(objections(rows({"0UNSHARD,0F0,0B0", "1F0,1B0"})), "") << "rank 1 shards nothing";
  EXPECT_EQ(objections(rows({"0F0,0UNSHARD,0B0"})),
            "rank 0 step 0: 0F0 runs on a stage that is not unsharded [S042]");
  EXPECT_EQ(objections(rows({"0UNSHARD,0F0,0RESHARD,0I0,0W0"})),
            "rank 0 step 3: 0I0 runs on a stage that is not unsharded [S042]\n"
            "rank 0 step 4: 0W0 runs on a stage that is not unsharded [S042]");
}

TEST(Verify, ShardTwice) {
  EXPECT_EQ(objections(rows({"0UNSHARD,0F0,0UNSHARD,0B0"})),
            "rank 0 step 2: 0UNSHARD finds stage 0 unsharded [S043]");
  EXPECT_EQ(objections(rows({"0F0,0B0,0RESHARD"})),
            "rank 0 step 2: 0RESHARD finds stage 0 sharded [S043]");
}

TEST(Verify, BeforeItsInput) {
  EXPECT_EQ(objections(rows({"0B0,0F0"})), "rank 0 step 0: 0B0 runs before 0F0 [S012]");
  EXPECT_EQ(objections(rows({"1F0,0F0,1B0,0B0"})), "rank 0 step 0: 1F0 runs before 0F0 [S012]");
  EXPECT_EQ(objections(rows({"0F0,1F0,0B0,1B0"})), "rank 0 step 2: 0B0 runs before 1B0 [S012]");
  EXPECT_EQ(objections(rows({"0SEND_F0,0F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"})),
            "rank 0 step 0: 0SEND_F0 runs before 0F0 [S012]");
  EXPECT_EQ(objections(rows({"0F0,0SEND_F0,0RECV_B0,0B0", "1F0,1RECV_F0,1B0,1SEND_B0"})),
            "rank 1 step 0: 1F0 runs before 1RECV_F0 [S012]");
}

TEST(Verify, UnpairedSend) {
  EXPECT_EQ(objections(rows({"0F0,0SEND_F0,0RECV_B0,0B0", "1F0,1B0,1SEND_B0"})),
            "rank 0 step 1: 0SEND_F0 has no partner 1RECV_F0 [S020]\n"
            "rank 1 step 0: 1F0 never receives its input [S022]");
}

TEST(Verify, UnpairedReceive) {
  EXPECT_EQ(objections(rows({"0F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"})),
            "rank 1 step 0: 1RECV_F0 has no partner 0SEND_F0 [S021]");
}

TEST(Verify, NotReceived) {
  EXPECT_EQ(objections(rows({"0F0,0SEND_F0,0B0", "1RECV_F0,1F0,1B0"})),
            "rank 0 step 2: 0B0 never receives its input [S022]");
}

TEST(Verify, LocalMessage) {
  EXPECT_EQ(objections(rows({"0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0"})),
            "rank 0 step 1: 0SEND_F0 stays on rank 0 [S023]\n"
            "rank 0 step 2: 1RECV_F0 stays on rank 0 [S023]");
}

TEST(Verify, DeadlockSpellsTheCycle) {
  const auto verdict = verify(rows({"0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1"}));
  ASSERT_EQ(verdict.diagnostics.size(), 1u);
  EXPECT_EQ(to_string(verdict.diagnostics[0]),
            "rank 0 step 1: 0B0 waits for itself: deadlock [S030]\n"
            "  note: rank 0: 0F0 [0B0] 0F1 0B1\n"
            "  note: rank 0 step 1: 0B0 waits for 1B0 of rank 1\n"
            "  note: rank 1 step 1: 1F1 waits for 0F1 of rank 0\n"
            "  note: on one of these ranks, move what is waited for ahead of what waits");
}

TEST(Verify, DeadlockOfThreeRanksLeavesOutWhoeverOnlyWaitsForIt) {
  // Rank 0 waits for the cycle of ranks 1 and 2, and is not in it.
  const auto verdict = verify(rows({"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1", "2F0,2F1,2B0,2B1"}));
  ASSERT_EQ(verdict.diagnostics.size(), 1u);
  EXPECT_EQ(to_string(verdict.diagnostics[0]),
            "rank 1 step 1: 1B0 waits for itself: deadlock [S030]\n"
            "  note: rank 1: 1F0 [1B0] 1F1 1B1\n"
            "  note: rank 1 step 1: 1B0 waits for 2B0 of rank 2\n"
            "  note: rank 2 step 1: 2F1 waits for 1F1 of rank 1\n"
            "  note: on one of these ranks, move what is waited for ahead of what waits");
}

TEST(Verify, DeadlockOfMessagesNamesTheSends) {
  const auto verdict = verify(rows({"0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1",
                                    "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1"}));
  ASSERT_EQ(verdict.diagnostics.size(), 1u);
  EXPECT_EQ(to_string(verdict.diagnostics[0]),
            "rank 0 step 3: 0B0 waits for itself: deadlock [S030]\n"
            "  note: rank 0: 0F0 0SEND_F0 0RECV_B0 [0B0] 0F1 0SEND_F1 0RECV_B1 0B1\n"
            "  note: rank 0 step 3: 0B0 waits for 1SEND_B0 of rank 1\n"
            "  note: rank 1 step 3: 1F1 waits for 0SEND_F1 of rank 0\n"
            "  note: on one of these ranks, move what is waited for ahead of what waits");
}

TEST(Verify, ReduceTooEarly) {
  EXPECT_EQ(objections(rows({"0F0,0F1,0B0,0REDUCE_GRAD,0B1"})),
            "rank 0 step 3: 0REDUCE_GRAD runs before 0B1 [S040]");
  EXPECT_EQ(objections(rows({"0F0,0I0,0REDUCE_GRAD,0W0"})),
            "rank 0 step 2: 0REDUCE_GRAD runs before 0W0 [S040]");
  EXPECT_EQ(objections(rows({"0F0,0F1,0B0,0REDUCE_GRAD0,0REDUCE_GRAD1,0B1"})),
            "rank 0 step 4: 0REDUCE_GRAD1 runs before 0B1 [S040]");
  EXPECT_EQ(objections(rows({"0F0,0I0,0F1,0B1,0REDUCE_GRAD1,0REDUCE_GRAD0,0W0"})),
            "rank 0 step 5: 0REDUCE_GRAD0 runs before 0W0 [S040]");
}

TEST(Verify, NotReduced) {
  EXPECT_EQ(objections(rows({"0F0,0B0,0REDUCE_GRAD", "1F0,1B0"})),
            "stage 1 has no REDUCE_GRAD, other stages have one [S041]");
  EXPECT_EQ(objections(rows({"0F0,0B0,0REDUCE_GRAD0", "1F0,1B0"})),
            "stage 1 has no REDUCE_GRAD, other stages have one [S041]");
  EXPECT_EQ(objections(rows({"0F0,0F1,0F2,0B0,0B1,0REDUCE_GRAD1,0B2"})),
            "0REDUCE_GRAD0 is missing, other microbatches have theirs [S041]\n"
            "0REDUCE_GRAD2 is missing, other microbatches have theirs [S041]");
  EXPECT_EQ(objections(rows({"0F0,0F1,0B0,0REDUCE_GRAD0,0B1,0REDUCE_GRAD1"})), "");
}

TEST(Verify, TooManyActivations) {
  const Schedule gpipe = schedule::make_schedule("gpipe", {.ranks = 2, .microbatches = 3});
  EXPECT_EQ(objections(gpipe, {.activations_max = 2}),
            "rank 0 step 2: holds 3 activations, 2 allowed [S050]\n"
            "rank 1 step 2: holds 3 activations, 2 allowed [S050]");
  EXPECT_EQ(objections(gpipe, {.activations_max = 3}), "");
}

TEST(Verify, ActivationLimitIsMetExactlyByOneFOneB) {
  for (std::int32_t ranks = 1; ranks <= 6; ++ranks) {
    const Schedule order = schedule::make_schedule("1f1b", {.ranks = ranks, .microbatches = 12});
    EXPECT_TRUE(verify(order, {.activations_max = ranks}).diagnostics.empty());
    EXPECT_FALSE(verify(order, {.activations_max = ranks - 1}).diagnostics.empty());
  }
}

TEST(Verify, ReportsEverythingAtOnceInProgramOrder) {
  EXPECT_EQ(objections(rows({"0B0,0F0,0F0,0REDUCE_GRAD,0F1,0B1,0SEND_F1", "1F0,1B1,0F2"})),
            "0B2 is missing [S004]\n"
            "1B0 is missing [S004]\n"
            "1F1 is missing [S004]\n"
            "1F2 is missing [S004]\n"
            "1B2 is missing [S004]\n"
            "stage 1 has no REDUCE_GRAD, other stages have one [S041]\n"
            "rank 0 step 0: 0B0 runs before 0F0 [S012]\n"
            "rank 0 step 0: 0B0 never receives its input [S022]\n"
            "rank 0 step 2: 0F0 runs again [S005]\n"
            "rank 0 step 3: 0REDUCE_GRAD runs before 0B1 [S040]\n"
            "rank 0 step 5: 0B1 never receives its input [S022]\n"
            "rank 0 step 6: 0SEND_F1 has no partner 1RECV_F1 [S020]\n"
            "rank 1 step 0: 1F0 never receives its input [S022]\n"
            "rank 1 step 2: 0F2 runs stage 0 [S003]");
}

TEST(Verify, NotesShowTheProgramAroundTheStepAndTheRepair) {
  const auto verdict =
      verify(rows({"0F0,0F1,0F2,0F3,0F4,0F5,0B0,0B2,0F6,0B1,0B3,0B4,0B5,0B6,0B0"}));
  ASSERT_EQ(verdict.diagnostics.size(), 1u);
  EXPECT_EQ(to_string(verdict.diagnostics[0]),
            "rank 0 step 14: 0B0 runs again [S005]\n"
            "  note: rank 0: ... 0B3 0B4 0B5 0B6 [0B0]\n"
            "  note: it first runs at rank 0 step 6; remove one of the two");
}

TEST(VerifiedSchedules, ThrowEveryObjection) {
  try {
    VerifiedSchedule::from(rows({"0B0,0F0,0F1"}));
    FAIL() << "accepted";
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(error.what(),
                 "schedule test(ranks=1, stages=1, microbatches=2): 2 objections\n"
                 "0B1 is missing [S004]\n"
                 "  note: stage 0 lives on rank 0; add 0B1 there\n"
                 "rank 0 step 0: 0B0 runs before 0F0 [S012]\n"
                 "  note: rank 0: [0B0] 0F0 0F1\n"
                 "  note: 0B0 needs 0F0, which is at rank 0 step 1; swap them");
  }
}

TEST(VerifiedSchedules, ShowTwentyObjectionsAndCountTheRest) {
  std::string program = "0B60";  // The others' are missing.
  for (int microbatch = 60; microbatch >= 0; --microbatch) {
    program = str("0F", microbatch, ",", program);
  }
  try {
    VerifiedSchedule::from(rows({program}));
    FAIL() << "accepted";
  } catch (const ScheduleError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(
        text.starts_with("schedule test(ranks=1, stages=1, microbatches=61): 60 objections\n"));
    EXPECT_TRUE(text.ends_with("\n... and 40 more")) << text;
    EXPECT_EQ(split(text, '[').size(), 21u);
  }
}

TEST(VerifiedSchedules, KeepScheduleAndFacts) {
  const Schedule order = rows({"0F0,3F0,3B0,0B0", "2F0,1F0,1B0,2B0"});
  // Stage 2 before stage 1 on one rank: not a good schedule.
  EXPECT_THROW(VerifiedSchedule::from(order), ScheduleError);
  const auto verified = VerifiedSchedule::from(rows({"0F0,3F0,3B0,0B0", "1F0,2F0,2B0,1B0"}));
  EXPECT_EQ(verified.facts().homes.of_stages(), (std::vector{Rank(0), Rank(1), Rank(1), Rank(0)}));
  EXPECT_EQ(verified.facts().peak_activations, (std::vector<std::int32_t>{2, 2}));
  EXPECT_EQ(verified.schedule().name, "test");
}

TEST(Verify, HugeSchedulesTakeTimeInProportion) {
  const Schedule order = schedule::lower_communication(
      schedule::make_schedule("1f1b", {.ranks = 16, .microbatches = 2048}));
  EXPECT_TRUE(verify(order).diagnostics.empty());
}

}  // namespace
}  // namespace penstock::verify
