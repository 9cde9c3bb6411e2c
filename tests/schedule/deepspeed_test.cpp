// DeepSpeed's dialect against what DeepSpeed writes, and against the IR.
#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/deepspeed/steps.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/verify/verify.h"
#include "tests/support/golden.h"
#include "tests/support/schedules.h"

namespace penstock::schedule::deepspeed {
namespace {

std::vector<Step> steps_of(const std::string& name, const Position& position) {
  if (name == "train") return train_steps(position);
  if (name == "train_later") return train_steps(position, TrainVersion::Later);
  if (name == "inference") return inference_steps(position);
  EXPECT_EQ(name, "dataparallel");
  return data_parallel_steps(position);
}

std::int32_t buffers_of(const std::string& name, const Position& position) {
  if (name == "train") return train_buffers(position);
  if (name == "train_later") return train_buffers(position, TrainVersion::Later);
  return name == "inference" ? kInferenceBuffers : kDataParallelBuffers;
}

TEST(DeepSpeed, StepsAndBuffersAreThoseOfDeepSpeed) {
  const auto lines = testing_support::golden_lines("deepspeed_steps.txt");
  EXPECT_EQ(lines.size(), 4u * 56u);
  for (const std::string& line : lines) {
    const std::size_t bar = line.find(" | ");
    const auto words = split(line.substr(0, bar), ' ');
    ASSERT_EQ(words.size(), 5u) << line;
    const Position position{.microbatches = std::stoi(words[1]),
                            .stages = std::stoi(words[2]),
                            .stage = std::stoi(words[3])};
    std::vector<std::string> texts;
    for (const Step& step : steps_of(words[0], position)) texts.push_back(join(step, " "));
    EXPECT_EQ(join(texts, "; "), line.substr(bar + 3));
    EXPECT_EQ(std::to_string(buffers_of(words[0], position)), words[4]) << line;
  }
}

template <class StepsOf>
Schedule as_schedule(std::int32_t microbatches, std::int32_t stages, const StepsOf& steps) {
  Schedule schedule{.name = "deepspeed", .stages = stages, .microbatches = microbatches};
  for (std::int32_t s = 0; s < stages; ++s) {
    const Position position{.microbatches = microbatches, .stages = stages, .stage = s};
    schedule.programs.push_back(to_program(steps(position), StageId(s)));
  }
  return schedule;
}

TEST(DeepSpeed, TrainScheduleIs1F1BAndVerifies) {
  for (std::int32_t stages = 1; stages <= 8; ++stages) {
    for (std::int32_t m = 1; m <= 24; ++m) {
      for (const TrainVersion version : {TrainVersion::Original, TrainVersion::Later}) {
        const Schedule schedule = as_schedule(
            m, stages, [&](const Position& position) { return train_steps(position, version); });
        ASSERT_TRUE(verify::verify(schedule).diagnostics.empty()) << grid(schedule);
        ASSERT_EQ(testing_support::compute_only(schedule).programs,
                  one_f_one_b({.ranks = stages, .microbatches = m}).programs);
      }
    }
  }
}

TEST(DeepSpeed, InferenceScheduleIsForwardOnlyAndVerifies) {
  for (std::int32_t stages = 1; stages <= 8; ++stages) {
    for (std::int32_t m = 1; m <= 24; ++m) {
      Schedule schedule = as_schedule(m, stages, inference_steps);
      schedule.purpose = Purpose::Forward;
      ASSERT_TRUE(verify::verify(schedule).diagnostics.empty()) << grid(schedule);
      ASSERT_EQ(testing_support::compute_only(schedule).programs,
                forward_only({.ranks = stages, .microbatches = m}).programs);
    }
  }
}

TEST(DeepSpeed, DataParallelScheduleVerifies) {
  const Schedule schedule = as_schedule(3, 1, data_parallel_steps);
  EXPECT_EQ(grid(schedule), "rank 0: 0F0 0B0 0F1 0B1 0F2 0B2 0REDUCE_GRAD\n");
  EXPECT_TRUE(verify::verify(schedule).diagnostics.empty());
}

TEST(DeepSpeedInstructions, ParseIsTheInverseOfPrint) {
  for (int kind = 0; kind <= static_cast<int>(Kind::OptimizerStep); ++kind) {
    for (const std::int32_t buffer : {0, 1, 10, 2147483647}) {
      Instruction instruction{.kind = static_cast<Kind>(kind)};
      if (has_buffer(instruction.kind)) instruction.buffer = buffer;
      EXPECT_EQ(parse_instruction(to_string(instruction)), instruction) << instruction;
    }
  }
  EXPECT_EQ(str(Instruction{Kind::ForwardPass, 1}), "ForwardPass(buffer_id=1)");
  EXPECT_EQ(str(Instruction{.kind = Kind::OptimizerStep}), "OptimizerStep()");
}

TEST(DeepSpeedInstructions, RefusalsNameTheColumn) {
  const auto refusal = [](std::string_view text) -> std::string {
    try {
      return str("accepted as ", parse_instruction(text));
    } catch (const ParseError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(
      refusal("ForwardPas(buffer_id=1)"),
      "instruction \"ForwardPas(buffer_id=1)\" column 1: expected the name of an instruction");
  EXPECT_EQ(refusal("ForwardPass()"),
            "instruction \"ForwardPass()\" column 12: expected (buffer_id=");
  EXPECT_EQ(refusal("ForwardPass(buffer_id=)"),
            "instruction \"ForwardPass(buffer_id=)\" column 23: expected a buffer number");
  EXPECT_EQ(refusal("ForwardPass(buffer_id=-1)"),
            "instruction \"ForwardPass(buffer_id=-1)\" column 23: expected a buffer number");
  EXPECT_EQ(refusal("ForwardPass(buffer_id=01)"),
            "instruction \"ForwardPass(buffer_id=01)\" column 23: expected a buffer number without "
            "sign or zeros");
  EXPECT_EQ(refusal("ForwardPass(buffer_id=1"),
            "instruction \"ForwardPass(buffer_id=1\" column 24: expected )");
  EXPECT_EQ(refusal("OptimizerStep(buffer_id=1)"),
            "instruction \"OptimizerStep(buffer_id=1)\" column 14: expected () and the end");
  EXPECT_EQ(refusal(""), "instruction \"\" column 1: expected the name of an instruction");
}

TEST(DeepSpeedDeathTest, PositionsOutsideThePipelineAreABug) {
  EXPECT_DEATH(train_steps({.microbatches = 1, .stages = 2, .stage = 2}), "stage 2 of 2");
}

}  // namespace
}  // namespace penstock::schedule::deepspeed
