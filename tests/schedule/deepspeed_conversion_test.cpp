// DeepSpeed's instructions and the actions of the IR are two views of one program.
#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/verify/verify.h"
#include "tests/support/schedules.h"
#include "tests/support/stepped.h"

namespace penstock::schedule::deepspeed {
namespace {

using testing_support::rows;

constexpr std::int32_t kStagesMax = 8;
constexpr std::int32_t kMicrobatchesMax = 24;

template <class Visit>
void for_each_size(const Visit& visit) {
  for (std::int32_t stages = 1; stages <= kStagesMax; ++stages) {
    for (std::int32_t m = 1; m <= kMicrobatchesMax; ++m) {
      visit(Sizes{.ranks = stages, .microbatches = m});
    }
  }
}

void expect_same_steps(const SteppedSchedule& left, const SteppedSchedule& right) {
  ASSERT_EQ(left.stages == right.stages, true) << to_text(left) << "\n" << to_text(right);
  ASSERT_EQ(left.microbatches, right.microbatches);
}

TEST(DeepSpeedConversion, TrainScheduleIs1F1BBothWays) {
  for_each_size([](const Sizes& sizes) {
    const Schedule order = make_schedule("1f1b", sizes);
    for (const auto& [name, version] : {std::pair("train", TrainVersion::Original),
                                        std::pair("train_later", TrainVersion::Later)}) {
      const SteppedSchedule train = make_stepped(name, sizes);
      const Schedule schedule = to_schedule(train);
      ASSERT_TRUE(verify::verify(schedule).diagnostics.empty()) << grid(schedule);
      ASSERT_EQ(testing_support::compute_only(schedule).programs, order.programs);
      expect_same_steps(to_stepped(order, version), train);
      expect_same_steps(to_stepped(schedule, version), train);
    }
  });
}

TEST(DeepSpeedConversion, InferenceScheduleIsForwardOnlyBothWays) {
  for_each_size([](const Sizes& sizes) {
    const Schedule order = make_schedule("forward_only", sizes);
    const SteppedSchedule inference = make_stepped("inference", sizes);
    const Schedule schedule = to_schedule(inference);
    ASSERT_EQ(schedule.purpose, Purpose::Forward);
    ASSERT_TRUE(verify::verify(schedule).diagnostics.empty()) << grid(schedule);
    ASSERT_EQ(testing_support::compute_only(schedule).programs, order.programs);
    expect_same_steps(to_stepped(order), inference);
    expect_same_steps(to_stepped(schedule), inference);
  });
}

TEST(DeepSpeedConversion, DataParallelScheduleIsAProgramOfOneStage) {
  const Schedule schedule = to_schedule(make_stepped("dataparallel", {.microbatches = 3}));
  EXPECT_EQ(grid(schedule), "rank 0: 0F0 0B0 0F1 0B1 0F2 0B2 0REDUCE_GRAD\n");
  EXPECT_TRUE(verify::verify(schedule).diagnostics.empty());
  EXPECT_THROW(to_schedule(make_stepped("dataparallel", {.ranks = 2})), ScheduleError);
}

TEST(DeepSpeedConversion, GPipeKeepsEveryInputUntilItsGradientHasLeft) {
  EXPECT_EQ(to_text(make_stepped("gpipe", {.ranks = 2, .microbatches = 2})),
            "stage 0 buffers=2\n"
            "  step 0: LoadMicroBatch(buffer_id=0) ForwardPass(buffer_id=0)\n"
            "  step 1: SendActivation(buffer_id=0)\n"
            "  step 2: LoadMicroBatch(buffer_id=1) ForwardPass(buffer_id=1)\n"
            "  step 3: SendActivation(buffer_id=1)\n"
            "  step 4:\n"
            "  step 5: RecvGrad(buffer_id=0) BackwardPass(buffer_id=0)\n"
            "  step 6:\n"
            "  step 7: RecvGrad(buffer_id=1) BackwardPass(buffer_id=1) ReduceTiedGrads() "
            "ReduceGrads() OptimizerStep()\n"
            "stage 1 buffers=2\n"
            "  step 0:\n"
            "  step 1: RecvActivation(buffer_id=0) LoadMicroBatch(buffer_id=0) "
            "ForwardPass(buffer_id=0)\n"
            "  step 2:\n"
            "  step 3: RecvActivation(buffer_id=1) LoadMicroBatch(buffer_id=1) "
            "ForwardPass(buffer_id=1)\n"
            "  step 4: BackwardPass(buffer_id=0)\n"
            "  step 5: SendGrad(buffer_id=0)\n"
            "  step 6: BackwardPass(buffer_id=1)\n"
            "  step 7: SendGrad(buffer_id=1) ReduceTiedGrads() ReduceGrads() OptimizerStep()\n");
}

TEST(DeepSpeedConversion, BackwardsInAnyOrderComeBackInThatOrder) {
  const Schedule order = rows({"0F0,0F1,0F2,0B2,0B0,0B1", "1F0,1F1,1F2,1B2,1B0,1B1"});
  const SteppedSchedule stepped = to_stepped(order);
  EXPECT_EQ(testing_support::compute_only(to_schedule(stepped)).programs, order.programs);
}

TEST(DeepSpeedConversion, RandomOrdersSurviveTheWayThereAndBack) {
  testing_support::Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 500; ++trial) {
    const Schedule order = testing_support::random_order_in_steps(random);
    for (const TrainVersion version : {TrainVersion::Original, TrainVersion::Later}) {
      const SteppedSchedule stepped = to_stepped(order, version);
      const Schedule schedule = to_schedule(stepped);
      ASSERT_TRUE(verify::verify(schedule).diagnostics.empty()) << grid(order) << to_text(stepped);
      ASSERT_EQ(testing_support::compute_only(schedule).programs, order.programs);
      expect_same_steps(to_stepped(schedule, version), stepped);
    }
  }
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

std::string refusal_of(const Schedule& schedule) {
  return refusal([&] { to_stepped(schedule); });
}

TEST(DeepSpeedConversion, RefusalsNameTheActionThatHasNoForm) {
  const std::string two =
      "schedule test(ranks=2, stages=2, microbatches=2) has no DeepSpeed form: ";
  const std::string one =
      "schedule test(ranks=1, stages=1, microbatches=1) has no DeepSpeed form: ";
  EXPECT_EQ(refusal_of(rows({"0F0,0F1,0B0,0B1", "1F0,1F1,1I0,1W0,1B1"})),
            two + "1I0 at rank 1 step 2 is half of a backward");
  EXPECT_EQ(refusal_of(rows({"1F0,1F1,1B0,1B1", "0F0,0F1,0B0,0B1"})),
            two + "1F0 at rank 0 step 0 is of another stage than its rank's");
  EXPECT_EQ(refusal_of(rows({"0F1,0F0,0B0,0B1", "1F1,1F0,1B0,1B1"})),
            two + "0F1 at rank 0 step 0 comes before 0F0");
  EXPECT_EQ(refusal_of(rows({"0UNSHARD,0F0,0B0"})),
            one + "0UNSHARD at rank 0 step 0 has no instruction");
  EXPECT_EQ(refusal_of(rows({"0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2"})),
            "schedule test(ranks=1, stages=1, microbatches=3) has no DeepSpeed form: 0F2 at rank 0 "
            "step 2 overlaps a backward");
  EXPECT_EQ(
      refusal_of(rows({"0F0,1F0,1B0,0B0"})),
      "schedule test(ranks=1, stages=2, microbatches=1) has no DeepSpeed form: it has not one "
      "stage per rank");
}

TEST(DeepSpeedConversion, RefusesWhatDoesNotVerify) {
  const std::string two =
      "schedule test(ranks=2, stages=2, microbatches=2) has no DeepSpeed form: ";
  EXPECT_EQ(refusal_of(rows({"0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1"})), two + "0B0 waits for ever");
  EXPECT_EQ(refusal_of(rows({"0F0,0F1,0B0,0B1", "1F0,1F1,1B0"})),
            two + "rank 1 runs 2 F and 1 B of 2 microbatches");
  EXPECT_EQ(refusal_of(rows({"0F0,0F1,0B0,0B0", "1F0,1F1,1B0,1B1"})),
            two + "0B0 at rank 0 step 3 is out of range, or comes again");
  EXPECT_EQ(refusal_of(Schedule{.name = "empty"}),
            "schedule empty(ranks=0, stages=0, microbatches=0) has no DeepSpeed form: it has not "
            "one stage per rank");
}

TEST(DeepSpeedConversion, StepsThatLoseAMicrobatchHaveNoProgram) {
  const auto refusal_of_text = [](std::string_view text) {
    return refusal([&] { to_schedule(parse_stepped(text, "x")); });
  };
  EXPECT_EQ(refusal_of_text("stage 0 buffers=1\n"
                            "step 0: LoadMicroBatch(buffer_id=0) ForwardPass(buffer_id=0) "
                            "BackwardPass(buffer_id=0) BackwardPass(buffer_id=0)\n"),
            "schedule x has no program: stage 0 step 0: BackwardPass(buffer_id=0) finds no output "
            "in its buffer");
}

}  // namespace
}  // namespace penstock::schedule::deepspeed
