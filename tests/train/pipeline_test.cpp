#include "penstock/runtime/train/pipeline.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <functional>

#include "penstock/core/error.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::train {
namespace {

constexpr std::int32_t kRanks = 2;
constexpr std::int32_t kMicrobatches = 4;

// A stage whose backward may ask for more than a plain one's.
struct Probe : nn::Layer {
  Probe(bool splits_, bool in_engine_) : splits(splits_), in_engine(in_engine_) {
    register_module("linear", linear);
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor output = linear(input);
    if (in_engine)
      output.register_hook([this](const at::Tensor& gradient) {
        torch::autograd::Engine::get_default_engine().queue_callback([this] { ++callbacks; });
        return gradient;
      });
    return output;
  }
  bool needs_engine() const override { return in_engine; }
  bool splits_backward() const override { return splits; }

  torch::nn::Linear linear{3, 3};
  bool splits;
  bool in_engine;
  int callbacks = 0;
};

schedule::Schedule zb_h1() {
  return schedule::make_schedule("zb_h1", {.ranks = kRanks, .microbatches = kMicrobatches});
}

execute::StepInputs step_of(const at::Tensor& input) {
  execute::StepInputs step;
  for (const at::Tensor& part : input.chunk(kMicrobatches)) step.inputs.emplace_back(part);
  step.targets = step.inputs;
  step.loss = nn::Loss([](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().sum();
  });
  return step;
}

// The gradient of stage 0's weight, whatever layers are asked for.
at::Tensor gradient_with(bool splits, bool in_engine) {
  const at::Tensor input = at::ones({kMicrobatches, 3});
  at::Tensor gradient;
  comm::run_ranks(kRanks, [&](comm::Communicator& communicator) {
    const auto layer = std::make_shared<Probe>(splits, in_engine);
    for (at::Tensor& parameter : layer->parameters()) parameter.data().fill_(0.5);
    Pipeline pipeline(zb_h1(), {{StageId(communicator.rank().value), layer, nullptr}}, {}, {},
                      communicator);
    pipeline.run(step_of(input));
    EXPECT_EQ(pipeline.activations().alive, 0);
    EXPECT_EQ(layer->callbacks, in_engine ? kMicrobatches : 0);
    if (communicator.rank().value == 0) gradient = layer->linear->weight.grad().clone();
  });
  return gradient;
}

TEST(Pipeline, LayersMaySplitTheirBackwardOrNotInsideTheEngineOrNot) {
  const at::Tensor plain = gradient_with(true, false);
  EXPECT_GT(plain.abs().sum().item<float>(), 0);
  EXPECT_TRUE(at::equal(gradient_with(false, false), plain));
  EXPECT_TRUE(at::equal(gradient_with(true, true), plain));
  EXPECT_TRUE(at::equal(gradient_with(false, true), plain));
}

std::string failure_of(const std::function<void(comm::Communicator&)>& body) {
  try {
    comm::run_ranks(kRanks, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing failed";
}

TEST(Pipeline, RefusesStagesThatTheProgramHasElsewhere) {
  const std::string failure = failure_of([](comm::Communicator& communicator) {
    const StageId other(1 - communicator.rank().value);
    Pipeline(zb_h1(), {{other, std::make_shared<Probe>(true, false), nullptr}}, {}, {},
             communicator);
  });
  EXPECT_NE(failure.find("on rank"), std::string::npos) << failure;
  EXPECT_NE(failure.find("was given stages"), std::string::npos) << failure;
}

TEST(Pipeline, ComparesFacts) {
  const std::string failure = failure_of([](comm::Communicator& communicator) {
    const StageId stage(communicator.rank().value);
    Pipeline(zb_h1(), {{stage, std::make_shared<Probe>(true, false), nullptr}}, {},
             {{agreement::Fact::LossFunction, communicator.rank().value == 0 ? "none" : "given"}},
             communicator);
  });
  EXPECT_NE(failure.find("rank 0 has loss function=none, rank 1 has loss function=given"),
            std::string::npos)
      << failure;
}

TEST(Pipeline, DoesNotRunAgainAfterAFailure) {
  comm::run_ranks(kRanks, [](comm::Communicator& communicator) {
    Pipeline pipeline(
        zb_h1(),
        {{StageId(communicator.rank().value), std::make_shared<Probe>(true, false), nullptr}}, {},
        {}, communicator);
    execute::StepInputs step = step_of(at::ones({kMicrobatches, 3}));
    step.loss = nn::Loss([](const at::Tensor& output, const at::Tensor&) { return output; });
    EXPECT_THROW(pipeline.run(step), Error);
    EXPECT_EQ(pipeline.activations().alive, 0);
    EXPECT_THROW(pipeline.run(step_of(at::ones({kMicrobatches, 3}))), CommError);
  });
}

TEST(Pipeline, TiedStagesBeginAlikeAndHaveTheSumOfTheirGradients) {
  comm::run_ranks(kRanks, [](comm::Communicator& communicator) {
    const auto rank = communicator.rank().value;
    const auto layer = std::make_shared<Probe>(true, false);
    layer->linear->weight.data().fill_(1.0 + rank);
    Pipeline pipeline(zb_h1(), {{StageId(rank), layer, nullptr}},
                      {{.name = "w", .stage = StageId(rank), .parameter = layer->linear->weight}},
                      {}, communicator);
    EXPECT_EQ(layer->linear->weight[0][0].item<float>(), 1.0F);  // The first stage's.
    layer->linear->bias.data().zero_();
    pipeline.run(step_of(at::ones({kMicrobatches, 3})));
    const at::Tensor once = layer->linear->weight.grad().clone();
    pipeline.run(step_of(at::ones({kMicrobatches, 3})));
    EXPECT_TRUE(at::equal(layer->linear->weight.grad(), 2 * once));
    // Output 9, error 8: 2 * 8 * 3 of the second weight's input, 3 * (2 * 8) of the first's.
    EXPECT_TRUE(at::equal(once, at::full({3, 3}, kMicrobatches * (16.0 * 3 + 16.0 * 3))));
  });
}

TEST(Pipeline, RefusesATieOfOneStage) {
  const std::string failure = failure_of([](comm::Communicator& communicator) {
    const auto rank = communicator.rank().value;
    const auto layer = std::make_shared<Probe>(true, false);
    std::vector<Tie> ties;
    if (rank == 1) ties = {{"w", StageId(rank), layer->linear->weight}};
    Pipeline(zb_h1(), {{StageId(rank), layer, nullptr}}, ties, {}, communicator);
  });
  EXPECT_NE(failure.find("only stage 1 ties a parameter as \"w\""), std::string::npos) << failure;
}

TEST(Pipeline, ReplicasHaveTheirOwnGradientsAndTies) {
  comm::run_ranks(2 * kRanks, [](comm::Communicator& communicator) {
    const std::int32_t stage = communicator.rank().value / 2;
    const std::int32_t replica = communicator.rank().value % 2;
    const auto layer = std::make_shared<Probe>(true, false);
    layer->linear->weight.data().fill_(1.0 + replica);
    layer->linear->bias.data().zero_();
    Pipeline pipeline(zb_h1(), {{StageId(stage), layer, nullptr}},
                      {{.name = "w", .stage = StageId(stage), .parameter = layer->linear->weight}},
                      {}, communicator, /*replicas=*/2);
    EXPECT_EQ(layer->linear->weight[0][0].item<float>(), 1.0F + static_cast<float>(replica));
    pipeline.run(step_of(at::ones({kMicrobatches, 3})));
    // With a weight of 1 as above; with 2: output 36, error 35, 6 and 18 beside it.
    const double expected = replica == 0 ? 16.0 * 3 + 16.0 * 3 : 70.0 * 6 + 3 * 70.0 * 2;
    EXPECT_TRUE(at::equal(layer->linear->weight.grad(), at::full({3, 3}, kMicrobatches * expected)))
        << layer->linear->weight.grad();
  });
}

TEST(Pipeline, RefusesAnotherNumberOfReplicas) {
  const std::string failure = failure_of([](comm::Communicator& communicator) {
    const StageId stage(communicator.rank().value);
    Pipeline(zb_h1(), {{stage, std::make_shared<Probe>(true, false), nullptr}}, {}, {},
             communicator, /*replicas=*/2);
  });
  EXPECT_NE(failure.find("is for 2 ranks x 2 replicas, the group has 2"), std::string::npos)
      << failure;
}

TEST(Pipeline, RefusesAProgramOfSeveralReplicas) {
  schedule::Schedule order = schedule::parse_csv("0F0,0B0\n0F1,0B1\n", "two");
  order.replicas = 2;
  const std::string failure = failure_of([&](comm::Communicator& communicator) {
    Pipeline(order, {{StageId(0), std::make_shared<Probe>(true, false), nullptr}}, {}, {},
             communicator);
  });
  EXPECT_NE(failure.find("two(ranks=2, stages=1, microbatches=2, replicas=2) has the programs of "
                         "several replicas, which are not trained by: expected those of one"),
            std::string::npos)
      << failure;
}

TEST(Pipeline, EvaluatesAnyNumberOfMicrobatches) {
  comm::run_ranks(kRanks, [](comm::Communicator& communicator) {
    const std::int32_t rank = communicator.rank().value;
    Pipeline pipeline(zb_h1(), {{StageId(rank), std::make_shared<Probe>(true, false), nullptr}}, {},
                      {}, communicator);
    for (const std::int32_t count : {1, 6, kMicrobatches, 6}) {
      execute::StepInputs step;
      step.inputs.assign(static_cast<std::size_t>(count), nn::Values(at::ones({2, 3})));
      const execute::StepResult result = pipeline.evaluate(step, count);
      EXPECT_EQ(std::ssize(result.outputs), count);
      EXPECT_EQ(result.outputs.back().empty(), rank != 1);
    }
  });
}

}  // namespace
}  // namespace penstock::train
