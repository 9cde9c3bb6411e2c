// Stepped schedules as text: exact both ways, strict inward.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"

namespace penstock::schedule::deepspeed {
namespace {

TEST(SteppedText, HasALinePerStep) {
  EXPECT_EQ(
      to_text(make_stepped("TrainSchedule", {.ranks = 2, .microbatches = 2})),
      "stage 0 buffers=2\n"
      "  step 0: LoadMicroBatch(buffer_id=0) ForwardPass(buffer_id=0)\n"
      "  step 1: SendActivation(buffer_id=0)\n"
      "  step 2: LoadMicroBatch(buffer_id=1) ForwardPass(buffer_id=1)\n"
      "  step 3: SendActivation(buffer_id=1) RecvGrad(buffer_id=0) BackwardPass(buffer_id=0)\n"
      "  step 4:\n"
      "  step 5: RecvGrad(buffer_id=1) BackwardPass(buffer_id=1) ReduceTiedGrads() "
      "ReduceGrads() OptimizerStep()\n"
      "stage 1 buffers=2\n"
      "  step 0:\n"
      "  step 1: RecvActivation(buffer_id=0) LoadMicroBatch(buffer_id=0) "
      "ForwardPass(buffer_id=0)\n"
      "  step 2: BackwardPass(buffer_id=0)\n"
      "  step 3: RecvActivation(buffer_id=1) SendGrad(buffer_id=0) "
      "LoadMicroBatch(buffer_id=1) ForwardPass(buffer_id=1)\n"
      "  step 4: BackwardPass(buffer_id=1)\n"
      "  step 5: SendGrad(buffer_id=1) ReduceTiedGrads() ReduceGrads() OptimizerStep()\n");
}

TEST(SteppedText, ParseIsTheInverseOfPrint) {
  for (const std::string_view name : {"train", "train_later", "inference", "1f1b", "gpipe"}) {
    for (std::int32_t stages = 1; stages <= 5; ++stages) {
      for (const std::int32_t m : {1, 2, 5, 12}) {
        const SteppedSchedule schedule = make_stepped(name, {.ranks = stages, .microbatches = m});
        const SteppedSchedule back = parse_stepped(to_text(schedule), schedule.name);
        EXPECT_TRUE(back.stages == schedule.stages) << to_text(schedule);
        EXPECT_EQ(back.microbatches, m);
        EXPECT_EQ(back.name, schedule.name);
        EXPECT_EQ(to_text(back), to_text(schedule));
      }
    }
  }
}

TEST(SteppedText, BlankLinesIndentationAndLineEndsAreFree) {
  EXPECT_EQ(
      to_text(parse_stepped("\nstage 0 buffers=1\r\n\n\tstep 0:  ReduceGrads()\tOptimizerStep() \n"
                            "step 1:",
                            "x")),
      "stage 0 buffers=1\n"
      "  step 0: ReduceGrads() OptimizerStep()\n"
      "  step 1:\n");
}

std::string refusal(std::string_view text) {
  try {
    parse_stepped(text, "plan.txt");
  } catch (const ParseError& error) {
    return error.message();
  }
  return "accepted";
}

TEST(SteppedText, RefusalsNameFileLineAndColumn) {
  const std::string nothing =
      "plan.txt: no stages; expected \"stage 0 buffers=N\", then a line per step";
  EXPECT_EQ(refusal(""), nothing);
  EXPECT_EQ(refusal("\n \r\n"), nothing);
  EXPECT_EQ(refusal("step 0:"), "plan.txt:1:1: expected \"stage \", found \"step 0:\"");
  EXPECT_EQ(refusal("stage 1 buffers=2"), "plan.txt:1:7: expected stage 0, found \"1 buffers=2\"");
  EXPECT_EQ(refusal("stage 0"), "plan.txt:1:8: expected \" buffers=\", found the end of the line");
  EXPECT_EQ(refusal("stage 0 buffers=-1"),
            "plan.txt:1:17: expected the number of buffers, found \"-1\"");
  EXPECT_EQ(refusal("stage 0 buffers=99999999999"),
            "plan.txt:1:17: expected the number of buffers, found \"99999999999\"");
  EXPECT_EQ(refusal("stage 0 buffers=02"),
            "plan.txt:1:17: expected the number of buffers, found \"02\"");
  EXPECT_EQ(refusal("stage 0 buffers=2 x"),
            "plan.txt:1:18: expected the end of the line, found \" x\"");
  EXPECT_EQ(refusal("stage 0 buffers=2\n  step 1:"), "plan.txt:2:8: expected step 0, found \"1:\"");
  EXPECT_EQ(refusal("stage 0 buffers=2\n  step 0 OptimizerStep()"),
            "plan.txt:2:9: expected \":\", found \" OptimizerStep()\"");
  EXPECT_EQ(refusal("stage 0 buffers=2\n  step 0:OptimizerStep()"),
            "plan.txt:2:10: expected a blank, found \"OptimizerStep()\"");
  EXPECT_EQ(refusal("stage 0 buffers=2\nrank 0"),
            "plan.txt:2:1: expected a stage or a step, found \"rank 0\"");
}

TEST(SteppedText, UnknownInstructionsAreRefusedByName) {
  EXPECT_EQ(refusal("stage 0 buffers=2\n  step 0: OptimizerStep() Fly(buffer_id=0)"),
            "plan.txt:2:27: instruction \"Fly(buffer_id=0)\" column 1: expected the name of an "
            "instruction, found \"Fly\"");
  EXPECT_EQ(
      refusal("stage 0 buffers=2\n  step 0: OptimizerStep(),ReduceGrads()"),
      "plan.txt:2:11: instruction \"OptimizerStep(),ReduceGrads()\" column 14: expected () and "
      "the end, found \"(),ReduceGrads()\"");
}

TEST(SteppedText, BinaryDataIsRefusedInReadableText) {
  EXPECT_EQ(refusal(std::string_view("\x89PNG\r\n\x1A\n\0\0", 10)),
            "plan.txt:1:1: expected \"stage \", found \"\xEF\xBF\xBDPNG\"");
}

TEST(SteppedFile, IsReadWhole) {
  const std::string path = testing::TempDir() + "penstock_stepped_test.txt";
  const SteppedSchedule schedule = make_stepped("train", {.ranks = 2, .microbatches = 3});
  std::ofstream(path) << to_text(schedule);
  EXPECT_TRUE(load_stepped(path).stages == schedule.stages);
  EXPECT_EQ(load_stepped(path).name, path);
  std::remove(path.c_str());
  EXPECT_THROW(load_stepped(path), ConfigError);
}

std::string refusal_of(std::string_view name, const Sizes& sizes) {
  try {
    make_stepped(name, sizes);
  } catch (const ScheduleError& error) {
    return error.message();
  }
  return "accepted";
}

TEST(MakeStepped, KnowsDeepSpeedsNamesInAnySpelling) {
  for (const char* name : {"train", "Train", "TrainSchedule", "train-schedule"}) {
    EXPECT_EQ(make_stepped(name, {}).name, "train");
  }
  EXPECT_EQ(make_stepped("InferenceSchedule", {}).name, "inference");
  EXPECT_EQ(make_stepped("DataParallelSchedule", {}).name, "dataparallel");
  EXPECT_EQ(make_stepped("train_later", {}).name, "train_later");
  EXPECT_EQ(make_stepped("Schedule1F1B", {}).name, "1f1b");
  EXPECT_EQ(deepspeed_names(),
            (std::vector<std::string_view>{"train", "train_later", "inference", "dataparallel"}));
}

TEST(MakeStepped, RefusesSizesByName) {
  EXPECT_EQ(refusal_of("train", {.ranks = 0}), "schedule train: ranks is 0, must be 1 to 1048576");
  EXPECT_EQ(refusal_of("train", {.microbatches = -3}),
            "schedule train: microbatches is -3, must be 1 to 1048576");
  EXPECT_EQ(refusal_of("train", {.stages_per_rank = 2}),
            "schedule train: stages_per_rank is 2, must be 1: it has one stage per rank");
  EXPECT_EQ(refusal_of("train", {.microbatch_group = 4}),
            "schedule train: microbatch_group is 4, must be absent: it has no groups");
  EXPECT_EQ(refusal_of("train", {.ranks = 1 << 20, .microbatches = 1 << 20}),
            "schedule train: microbatches is 1048576, must be at most 64");
  EXPECT_EQ(
      refusal_of("zb_h1", {.ranks = 2, .microbatches = 2}),
      "schedule zb_h1(ranks=2, stages=2, microbatches=2) has no DeepSpeed form: 0I0 at rank 0 "
      "step 2 is half of a backward");
}

}  // namespace
}  // namespace penstock::schedule::deepspeed
