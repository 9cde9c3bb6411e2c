#include "penstock/runtime/execute/executor.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/nn/gpt.h"
#include "penstock/runtime/execute/form_numbers.h"
#include "penstock/runtime/nn/mlp.h"
#include "tests/execute/pipeline.h"

namespace penstock::execute {
namespace {

constexpr std::int64_t kWidth = 8;

StepInputs random_step(std::size_t microbatches, std::int64_t samples = 4) {
  StepInputs step{
      .loss = mean_squared_error,
      .loss_factors = std::vector<double>(microbatches, 1.0 / static_cast<double>(microbatches))};
  for (std::size_t m = 0; m < microbatches; ++m) {
    step.inputs.push_back(at::rand({samples, kWidth}));
    step.targets.push_back(at::rand({samples, kWidth}));
  }
  return step;
}

// Runs `schedule` on threads, `steps` times, and compares each step with the plain loop.
void expect_plain_bits(const verify::VerifiedSchedule& schedule,
                       const std::vector<nn::LayerSpec>& model,
                       const std::vector<StepInputs>& steps) {
  const std::int32_t ranks = schedule.schedule().ranks();
  std::vector<Collected> collected(steps.size());
  comm::run_ranks(ranks, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, schedule, model, {.pipe = ranks});
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const StepResult result = rank.run(steps[step]);
      collected[step].add(rank, result);
      EXPECT_EQ(rank.count->alive, 0);
      EXPECT_EQ(rank.count->peak, rank.executor->plan().peak_activations)
          << "rank " << communicator.rank();
    }
  });
  for (std::size_t step = 0; step < steps.size(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    collected[step].expect_equals(plain_run(model, steps[step]));
  }
}

struct Layout {
  const char* schedule;
  schedule::Sizes sizes;
};

std::string layout_name(const testing::TestParamInfo<Layout>& layout) {
  const auto& [name, sizes] = layout.param;
  const char* schedule = std::string(name) == "1f1b" ? "OneFOneB" : "GPipe";
  return str(schedule, sizes.ranks, "Ranks", sizes.microbatches, "Microbatches");
}

class ExecutorLayouts : public testing::TestWithParam<Layout> {};

TEST_P(ExecutorLayouts, LossGradientsAndPeakActivationsAreThePlainLoopsAndThePlans) {
  const auto [name, sizes] = GetParam();
  const auto microbatches = static_cast<std::size_t>(sizes.microbatches);
  expect_plain_bits(from_name(name, sizes), nn::mlp_layers(kWidth, 8),
                    {random_step(microbatches), random_step(microbatches)});
}

INSTANTIATE_TEST_SUITE_P(Schedules, ExecutorLayouts,
                         testing::Values(Layout{"gpipe", {1, 1, 3}}, Layout{"gpipe", {2, 1, 1}},
                                         Layout{"gpipe", {2, 1, 4}}, Layout{"gpipe", {4, 1, 2}},
                                         Layout{"gpipe", {4, 1, 7}}, Layout{"gpipe", {2, 1, 16}},
                                         Layout{"1f1b", {1, 1, 3}}, Layout{"1f1b", {2, 1, 1}},
                                         Layout{"1f1b", {2, 1, 4}}, Layout{"1f1b", {4, 1, 2}},
                                         Layout{"1f1b", {4, 1, 7}}, Layout{"1f1b", {2, 1, 16}}),
                         layout_name);

TEST(Executor, AGptOverFourRanksHasThePlainLoopsBits) {
  StepInputs step{.loss = nn::next_byte_loss, .loss_factors = std::vector<double>(4, 0.25)};
  for (int m = 0; m < 4; ++m) {
    step.inputs.push_back(at::randint(256, {2, 16}, at::kLong));
    step.targets.push_back(at::randint(256, {2, 16}, at::kLong));
  }
  const auto model = nn::gpt_layers({.layers = 4, .hidden = 16, .heads = 2, .sequence_length = 16});
  expect_plain_bits(from_name("1f1b", {.ranks = 4, .microbatches = 4}), model, {step, step});
}

// Ranks hold stages 0 and 3, 1 and 2: rank 1 hands over to itself.
constexpr const char* kV =
    "0F0,0F1,0F2,3F0,3B0,3F1,3B1,3F2,3B2,0B0,0B1,0B2\n"
    "1F0,2F0,1F1,2F1,1F2,2F2,2B0,1B0,2B1,1B1,2B2,1B2\n";

TEST(Executor, StagesOfOneRankHandOverToEachOther) {
  expect_plain_bits(from_csv(kV), nn::mlp_layers(kWidth, 4), {random_step(3), random_step(3)});
  expect_plain_bits(from_csv("0F0,1F0,0F1,1F1,1B1,0B1,1B0,0B0\n"), nn::mlp_layers(kWidth, 2),
                    {random_step(2)});
}

// Hands back its input, a view of it, or a transposed view.
class Passes : public nn::Layer {
 public:
  explicit Passes(char how) : how_(how) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (how_ == 'i') return input;
    if (how_ == 'v') return input.view({input.size(1), input.size(0)});
    return input.t();
  }

 private:
  char how_;
};

nn::LayerSpec passes(const std::string& name, char how) {
  return {{name, "Passes", 0}, [how] { return std::make_shared<Passes>(how); }};
}

std::string all_of(int stage, char op, int microbatches) {
  std::string cells;
  for (int m = 0; m < microbatches; ++m) {
    cells += std::to_string(stage) + op + std::to_string(m) + ",";
  }
  return cells;
}

TEST(Executor, AStageThatHandsBackWhatItReceivedGivesThePlainLoopsBits) {
  const auto mlp = nn::mlp_layers(kWidth, 2);
  for (const char how : {'i', 'v', 't'}) {
    SCOPED_TRACE(how);
    const std::vector<nn::LayerSpec> in_the_middle = {mlp[0], passes("a", how), passes("b", how),
                                                      mlp[1]};
    const StepInputs step = random_step(9);
    for (const char* name : {"gpipe", "1f1b"}) {
      expect_plain_bits(from_name(name, {.ranks = 4, .microbatches = 9}), in_the_middle,
                        {step, step});
    }
    // Rank 1 receives, hands over to itself, and only then uses: buffers must not come round.
    constexpr int kMicrobatches = 9;
    const auto f = [&](int stage) { return all_of(stage, 'F', kMicrobatches); };
    const auto b = [&](int stage) { return all_of(stage, 'B', kMicrobatches); };
    expect_plain_bits(from_csv(f(0) + f(3) + b(3) + b(0) + "\n" + f(1) + f(2) + b(2) + b(1)),
                      in_the_middle, {step, step});
  }
}

TEST(Executor, OutputsWithoutALossAreThePlainOnesAlsoWhenAStageHandsBackWhatItReceived) {
  constexpr int kMicrobatches = 9;
  const auto mlp = nn::mlp_layers(kWidth, 2);
  StepInputs step = random_step(kMicrobatches);
  step.loss = nullptr;
  const auto f = [&](int stage) { return all_of(stage, 'F', kMicrobatches); };
  for (const bool last_passes : {true, false}) {
    const std::vector<nn::LayerSpec> model = {mlp[0], passes("a", 'i'), passes("b", 'i'),
                                              last_passes ? passes("c", 'i') : mlp[1]};
    // Forward only: nothing holds a buffer for a backward.
    for (const std::string& csv :
         {f(0) + f(3) + "\n" + f(1) + f(2), f(0) + "\n" + f(1) + "\n" + f(2) + f(3)}) {
      const auto schedule = from_csv(csv);
      comm::run_ranks(schedule.schedule().ranks(), [&](comm::Communicator& communicator) {
        RankPipeline rank(communicator, schedule, model, {.pipe = communicator.world_size()});
        for (int repeat = 0; repeat < 3; ++repeat) {
          const StepResult result = rank.run(step);
          EXPECT_EQ(rank.count->peak, 0);
          if (!rank.executor->plan().has_last_stage) continue;
          for (std::size_t m = 0; m < kMicrobatches; ++m) {
            at::Tensor value = step.inputs[m][0];
            for (std::size_t i = 0; i < model.size(); ++i) {
              value = nn::build(model[i], kSeed, static_cast<std::int64_t>(i))->forward(value);
            }
            ASSERT_EQ(result.outputs[m].size(), 1u);
            EXPECT_TRUE(same_bits(result.outputs[m][0], value.detach())) << "microbatch " << m;
          }
        }
      });
    }
  }
}

// What run_ranks rethrows of a run that must fail.
template <class Body>
Error failure_of(std::int32_t ranks, const Body& body) {
  try {
    comm::run_ranks(ranks, body);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "did not fail";
  return Error("");
}

void expect_contains(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }
}

TEST(Executor, ShapesMayChangeFromStepToStepAndFromMicrobatchToMicrobatch) {
  StepInputs uneven = random_step(4);
  for (const std::size_t m : {2, 3}) {
    uneven.inputs[m] = at::rand({2, kWidth});
    uneven.targets[m] = at::rand({2, kWidth});
  }
  StepInputs turned = uneven;
  std::ranges::reverse(turned.inputs);
  std::ranges::reverse(turned.targets);
  const std::vector<StepInputs> steps = {
      random_step(4, 4), random_step(4, 8), uneven, random_step(4, 1), turned, random_step(4, 4)};
  for (const std::int32_t ranks : {2, 4}) {
    for (const char* name : {"gpipe", "1f1b"}) {
      expect_plain_bits(from_name(name, {.ranks = ranks, .microbatches = 4}),
                        nn::mlp_layers(kWidth, 4), steps);
    }
  }
  constexpr const char* kVOfFour =
      "0F0,0F1,0F2,0F3,3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,0B0,0B1,0B2,0B3\n"
      "1F0,2F0,1F1,2F1,1F2,2F2,1F3,2F3,2B0,1B0,2B1,1B1,2B2,1B2,2B3,1B3\n";
  expect_plain_bits(from_csv(kVOfFour), nn::mlp_layers(kWidth, 4), steps);
}

// More forms than a rank remembers, so that all of them are forgotten on the way, and none again.
TEST(Executor, EverNewShapesAreForgottenTogether) {
  const auto schedule = from_name("gpipe", {.ranks = 3, .microbatches = 64});
  std::vector<StepInputs> steps;
  for (std::int64_t step = 0; step < 20; ++step) {
    steps.push_back({.loss = mean_squared_error});
    for (std::int64_t m = 0; m < 64; ++m) {
      const std::int64_t samples = 1 + (step % 10) * 64 + m;
      steps.back().inputs.push_back(at::rand({samples, 2}));
      steps.back().targets.push_back(at::rand({samples, 2}));
    }
  }
  ASSERT_GT(640u, FormNumbers::kFormsMax);
  expect_plain_bits(schedule, nn::mlp_layers(2, 3), steps);
}

// The batch's sum decides how many columns come out.
class CutsByValue : public nn::Layer {
 public:
  at::Tensor forward(const at::Tensor& input) override {
    return input.sum().item<double>() > 0 ? input : input.narrow(1, 0, 3);
  }
};

TEST(Executor, AShapeThatDependsOnValuesIsAnErrorWithBothShapes) {
  const std::vector<nn::LayerSpec> model = {
      nn::layer("cuts", [] { return std::make_shared<CutsByValue>(); }), passes("b", 'i')};
  StepInputs step = random_step(2);
  step.inputs[1] = -step.inputs[1][0];
  const Error error = failure_of(2, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, from_csv("0F0,0F1\n1F0,1F1\n"), model, {.pipe = 2});
    rank.run(step);
  });
  expect_contains(error.message(), {"rank 0", "0SEND_F1", "Float[4, 3]", "Float[4, 8]"});
}

TEST(Executor, AnotherTypeInALaterStepGoesThrough) {
  const auto schedule = from_csv("0F0\n1F0\n");
  const std::vector<nn::LayerSpec> model = {passes("a", 'i'), passes("b", 'i')};
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, schedule, model, {.pipe = 2});
    for (const auto type : {at::kFloat, at::kDouble, at::kBool, at::kFloat}) {
      const StepInputs step{.inputs = {at::ones({2}, type)}};
      const StepResult result = rank.run(step);
      if (communicator.rank().value == 1) {
        EXPECT_TRUE(same_bits(result.outputs[0][0], step.inputs[0][0]));
      }
    }
  });
}

TEST(Executor, AStepWithAnotherNumberOfMicrobatchesIsRefusedByBothNumbers) {
  const auto schedule = from_name("1f1b", {.ranks = 1, .microbatches = 4});
  StepInputs targets = random_step(4);
  targets.targets.pop_back();
  for (const StepInputs& step : {random_step(3), targets}) {
    const Error error = failure_of(1, [&](comm::Communicator& communicator) {
      RankPipeline rank(communicator, schedule, nn::mlp_layers(kWidth, 4), {});
      rank.run(step);
    });
    expect_contains(error.message(), {"rank 0", "the plan has 4 microbatches", "of 3"});
  }
}

class Throws : public nn::Layer {
 public:
  at::Tensor forward(const at::Tensor& input) override {
    if (++calls_ == 2) throw std::runtime_error("layer is tired");
    return input * 2;
  }

 private:
  int calls_ = 0;
};

TEST(Executor, AnExceptionInALayerNamesRankScheduleAndInstruction) {
  const auto mlp = nn::mlp_layers(kWidth, 2);
  const std::vector<nn::LayerSpec> model = {
      mlp[0], {{"tired", "Throws", 0}, [] { return std::make_shared<Throws>(); }}};
  const auto schedule = from_name("gpipe", {.ranks = 2, .microbatches = 3});
  const auto start = std::chrono::steady_clock::now();
  const Error error = failure_of(2, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, schedule, model, {.pipe = 2});
    rank.run(random_step(3));
  });
  expect_contains(error.message(),
                  {"rank 1", "gpipe(ranks=2, stages=2, microbatches=3)", "1F1", "layer is tired"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Executor, ATorchErrorComesWithoutItsBacktrace) {
  const std::vector<nn::LayerSpec> model = {nn::layer<torch::nn::Linear>("a", 8, 8),
                                            nn::layer<torch::nn::Linear>("b", 9, 8)};
  const auto schedule = from_name("1f1b", {.ranks = 2, .microbatches = 2});
  const Error error = failure_of(2, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, schedule, model, {.pipe = 2});
    rank.run(random_step(2));
  });
  expect_contains(error.message(), {"rank 1", "1F0", "4x8 and 9x8"});
  EXPECT_EQ(error.message().find("frame #"), std::string::npos) << error.message();
}

TEST(Executor, AStageThatDoesNotUseItsInputSaysSo) {
  class Ignores : public nn::Layer {
   public:
    Ignores() : weight_(register_parameter("weight", at::zeros({4, kWidth}))) {}
    at::Tensor forward(const at::Tensor&) override { return weight_ * 1; }

   private:
    at::Tensor weight_;
  };
  const auto mlp = nn::mlp_layers(kWidth, 1);
  const std::vector<nn::LayerSpec> model = {
      mlp[0], {{"deaf", "Ignores", 4 * kWidth}, [] { return std::make_shared<Ignores>(); }}};
  const auto schedule = from_name("1f1b", {.ranks = 2, .microbatches = 2});
  const Error error = failure_of(2, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, schedule, model, {.pipe = 2});
    rank.run(random_step(2));
  });
  expect_contains(error.message(), {"rank 1", "stage 1 does not use its input"});
}

TEST(Executor, RecordsAnEventPerInstructionInOrder) {
  const auto schedule = from_name("1f1b", {.ranks = 2, .microbatches = 4});
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, schedule, nn::mlp_layers(kWidth, 4), {.pipe = 2});
    rank.run(random_step(4));
    EXPECT_TRUE(rank.executor->events().empty()) << "not asked to record";
    rank.executor->record_next_run();
    rank.run(random_step(4));
    const auto& events = rank.executor->events();
    const auto& instructions = rank.executor->plan().instructions;
    ASSERT_EQ(events.size(), instructions.size() + 1) << "and the end of the step";
    std::int64_t before = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i].instruction, static_cast<std::int32_t>(i));
      EXPECT_LE(before, events[i].start_ns);
      EXPECT_LE(events[i].start_ns, events[i].ready_ns);
      EXPECT_LE(events[i].ready_ns, events[i].end_ns);
      before = events[i].end_ns;
      const bool sends = i < instructions.size() && instructions[i].kind == lower::Kind::Send;
      EXPECT_EQ(events[i].bytes, sends ? 4 * kWidth * 4 : 0) << "4 samples of floats";
    }
    rank.run(random_step(4));
    EXPECT_TRUE(rank.executor->events().empty()) << "one run only";
  });
}

TEST(Executor, ProgressCountsEveryInstruction) {
  const auto schedule = from_name("1f1b", {.ranks = 2, .microbatches = 4});
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, schedule, nn::mlp_layers(kWidth, 4), {.pipe = 2});
    const auto instructions = std::ssize(rank.executor->plan().instructions);
    rank.run(random_step(4));
    const std::int64_t first = rank.progress.counter;
    rank.run(random_step(4));
    EXPECT_GE(first, instructions);
    EXPECT_EQ(rank.progress.counter - first, first);
    EXPECT_EQ(rank.progress.instruction, -1);
    EXPECT_FALSE(rank.progress.waiting);
    EXPECT_EQ(rank.progress.plan, &rank.executor->plan());
  });
}

}  // namespace
}  // namespace penstock::execute
