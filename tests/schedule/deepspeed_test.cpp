// DeepSpeed's schedules, clock and instructions against what DeepSpeed writes.
#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"
#include "penstock/plan/schedule/deepspeed/steps.h"
#include "tests/support/golden.h"

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
    const auto all =
        make_stepped(words[0], {.ranks = position.stages, .microbatches = position.microbatches});
    const StageSteps& stage = all.stages.at(static_cast<std::size_t>(position.stage));
    EXPECT_EQ(stage.steps, steps_of(words[0], position)) << line;
    EXPECT_EQ(std::to_string(stage.buffers), words[4]) << line;
  }
}

TEST(DeepSpeed, OneStepIsThatOfAllSteps) {
  for (std::int32_t stages = 1; stages <= 5; ++stages) {
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      for (std::int32_t m = 1; m <= 6; ++m) {
        const Position at{.microbatches = m, .stages = stages, .stage = stage};
        const auto train = train_steps(at);
        for (std::int32_t t = 0; t < train_step_count(at); ++t) {
          EXPECT_EQ(train_step(at, t, TrainVersion::Original, train_buffers(at)),
                    train[static_cast<std::size_t>(t)]);
        }
        EXPECT_EQ(static_cast<std::int32_t>(train.size()), 2 * (m + stages - 1));
        EXPECT_EQ(static_cast<std::int32_t>(inference_steps(at).size()), m + stages - 1);
        EXPECT_EQ(static_cast<std::int32_t>(data_parallel_steps(at).size()), m);
      }
    }
  }
}

TEST(DeepSpeed, BuffersOfATrainStepAreThoseAskedFor) {
  const Position at{.microbatches = 8, .stages = 2, .stage = 0};
  EXPECT_EQ(join(train_step(at, 10, TrainVersion::Original, 4), " "),
            "LoadMicroBatch(buffer_id=1) ForwardPass(buffer_id=1)");
}

TEST(DeepSpeed, AStepOfAnotherClockTakesWhatItIsGiven) {
  const Position at{.microbatches = 8, .stages = 3, .stage = 1};
  EXPECT_EQ(join(train_step_at(at, {5, true}, 2, TrainVersion::Original, 100), " "),
            "RecvActivation(buffer_id=5) SendGrad(buffer_id=2) ForwardPass(buffer_id=5)");
  EXPECT_EQ(join(train_step_at(at, {5, false}, 8, TrainVersion::Later, 100), " "),
            "RecvGrad(buffer_id=5) BackwardPass(buffer_id=5)");
  EXPECT_EQ(join(train_step_at(at, {-1, false}, 0, TrainVersion::Later, 100), " "),
            "SendActivation(buffer_id=0)");
}

TEST(DeepSpeedClock, ForwardAndBackwardAreWhereTheFormulasPutThem) {
  for (std::int32_t stages = 1; stages <= 8; ++stages) {
    for (std::int32_t s = 0; s < stages; ++s) {
      const Position at{.microbatches = 24, .stages = stages, .stage = s};
      for (std::int32_t k = -30; k <= 30; ++k) {
        EXPECT_EQ(step_to_micro_batch(at, 2 * k + s), (Tick{k, true}));
        EXPECT_EQ(step_to_micro_batch(at, 2 * k + 2 * stages - 1 - s), (Tick{k, false}));
      }
    }
  }
}

TEST(DeepSpeedClock, IdsAreHalvesRoundedDown) {
  // By hand, on both sides of every parity: stage 2 and stage 3 of 5.
  const Position even{.microbatches = 8, .stages = 5, .stage = 2};
  const Position odd{.microbatches = 8, .stages = 5, .stage = 3};
  EXPECT_EQ(even_step_forward_id(even, 6), 2);    // 6/2 - 2/2
  EXPECT_EQ(even_step_forward_id(odd, 6), 2);     // 6/2 - 3/2
  EXPECT_EQ(odd_step_forward_id(even, 7), 2);     // (7-1)/2 - 2/2
  EXPECT_EQ(odd_step_forward_id(odd, 7), 2);      // (7-1)/2 - 3/2
  EXPECT_EQ(even_step_backward_id(even, 8), 0);   // 8/2 - 5 + (2+1)/2
  EXPECT_EQ(even_step_backward_id(odd, 8), 1);    // 8/2 - 5 + (3+1)/2
  EXPECT_EQ(odd_step_backward_id(even, 9), 1);    // (9-1)/2 - 5 + 1 + 2/2
  EXPECT_EQ(odd_step_backward_id(odd, 9), 1);     // (9-1)/2 - 5 + 1 + 3/2
  EXPECT_EQ(even_step_forward_id(even, -1), -2);  // -1/2 is -1.
  EXPECT_EQ(odd_step_backward_id(even, 0), -4);   // -1/2 - 5 + 1 + 2/2
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

TEST(DeepSpeedInstructions, KindsHaveTheNamesOfTheirClasses) {
  for (std::size_t i = 0; i < kKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    EXPECT_EQ(find_kind(to_string(kind)), kind);
  }
  EXPECT_EQ(find_kind("forwardpass"), std::nullopt);
  EXPECT_EQ(find_kind(""), std::nullopt);
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

TEST(DeepSpeedInstructions, AreMadeOfTheirParts) {
  EXPECT_EQ(make_instruction("SendGrad", 3), (Instruction{Kind::SendGrad, 3}));
  EXPECT_EQ(make_instruction("ReduceGrads", {}), Instruction{.kind = Kind::ReduceGrads});
  EXPECT_EQ(refusal([] { make_instruction("SendGrads", 3); }),
            "unknown instruction \"SendGrads\"; did you mean \"SendGrad\"?");
  EXPECT_EQ(refusal([] { make_instruction("SendGrad", {}); }),
            "instruction SendGrad needs a buffer_id");
  EXPECT_EQ(refusal([] { make_instruction("OptimizerStep", 0); }),
            "instruction OptimizerStep has no buffer_id");
}

TEST(DeepSpeedInstructions, RefusalsNameColumnAndWhatIsThere) {
  const auto parse = [](std::string_view text) {
    return refusal([&] { parse_instruction(text); });
  };
  EXPECT_EQ(
      parse("ForwardPas(buffer_id=1)"),
      "instruction \"ForwardPas(buffer_id=1)\" column 1: expected the name of an instruction, "
      "found \"ForwardPas\"; did you mean \"ForwardPass\"?");
  EXPECT_EQ(parse("CommitP2P()"),
            "instruction \"CommitP2P()\" column 1: expected the name of an instruction, found "
            "\"CommitP2P\"");
  EXPECT_EQ(parse("ForwardPass()"),
            "instruction \"ForwardPass()\" column 12: expected (buffer_id=, found \"()\"");
  EXPECT_EQ(parse("ForwardPass(buffer_id=)"),
            "instruction \"ForwardPass(buffer_id=)\" column 23: expected a buffer number, found "
            "\")\"");
  EXPECT_EQ(parse("ForwardPass(buffer_id=-1)"),
            "instruction \"ForwardPass(buffer_id=-1)\" column 23: expected a buffer number, found "
            "\"-1)\"");
  EXPECT_EQ(parse("ForwardPass(buffer_id=01)"),
            "instruction \"ForwardPass(buffer_id=01)\" column 23: expected a buffer number without "
            "sign or zeros, found \"01)\"");
  EXPECT_EQ(parse("ForwardPass(buffer_id=1"),
            "instruction \"ForwardPass(buffer_id=1\" column 24: expected ), found the end");
  EXPECT_EQ(parse("OptimizerStep(buffer_id=1)"),
            "instruction \"OptimizerStep(buffer_id=1)\" column 14: expected () and the end, found "
            "\"(buffer_id=1)\"");
  EXPECT_EQ(parse(""),
            "instruction \"\" column 1: expected the name of an instruction, found \"\"");
}

TEST(DeepSpeed, PositionsOutsideThePipelineAreNamedWithTheirRange) {
  EXPECT_EQ(refusal([] { train_steps({.microbatches = 1, .stages = 2, .stage = 2}); }),
            "stage_id is 2, must be 0 to 1");
  EXPECT_EQ(refusal([] { inference_steps({.microbatches = 0, .stages = 2, .stage = -1}); }),
            "micro_batches is 0, must be 1 to 16777216; stage_id is -1, must be 0 to 1");
  EXPECT_EQ(refusal([] { data_parallel_steps({.microbatches = 1, .stages = 0, .stage = 0}); }),
            "stages is 0, must be 1 to 16777216");
  EXPECT_EQ(refusal([] { train_buffers({.microbatches = 1, .stages = 1, .stage = 1}); }),
            "stage_id is 1, must be 0 to 0");
}

}  // namespace
}  // namespace penstock::schedule::deepspeed
