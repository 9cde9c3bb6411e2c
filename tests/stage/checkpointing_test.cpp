// Activations that are computed again: once, to the same bits, and without a trace.
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "penstock/core/error.h"
#include "penstock/runtime/stage/stage.h"
#include "tests/support/same_bits.h"

namespace penstock::stage {
namespace {

using testing_support::same_bits;

constexpr std::int64_t kWidth = 6;

// tanh(Linear(x)), which counts how often it is run.
class Counted : public nn::Layer {
 public:
  explicit Counted(int& runs)
      : runs_(runs), fc_(register_module("fc", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& input) override {
    ++runs_;
    return fc_->forward(input).tanh();
  }

 private:
  int& runs_;
  torch::nn::Linear fc_;
};

class CheckpointingTest : public testing::Test {
 protected:
  std::vector<nn::LayerSpec> model(std::size_t layers) {
    runs_.assign(layers, 0);
    std::vector<nn::LayerSpec> specs;
    for (std::size_t i = 0; i < layers; ++i) {
      specs.push_back(nn::layer("layer" + std::to_string(i),
                                [this, i] { return std::make_shared<Counted>(runs_[i]); }));
    }
    return specs;
  }
  Stage stage(const std::vector<nn::LayerSpec>& layers, const Checkpointing& checkpointing) const {
    return {StageId(0), layers, 0, std::ssize(layers), /*seed=*/1, count_, checkpointing};
  }

  std::vector<int> runs_;
  std::shared_ptr<ActivationCount> count_ = std::make_shared<ActivationCount>();
  at::Tensor x_ = at::rand({4, kWidth}).requires_grad_(true);
  at::Tensor gradient_ = at::rand({4, kWidth});
};

TEST_F(CheckpointingTest, EveryForwardRunsTwiceWholeOrSplit) {
  Stage staged = stage(model(5), {.interval = 2});
  staged.forward(Microbatch(0), x_, true);
  staged.forward(Microbatch(1), x_, true);
  EXPECT_EQ(runs_, (std::vector<int>{2, 2, 2, 2, 2}));
  staged.backward(Microbatch(0), gradient_);
  EXPECT_EQ(runs_, (std::vector<int>{3, 3, 3, 3, 3}));
  staged.backward_input(Microbatch(1), gradient_);
  EXPECT_EQ(runs_, (std::vector<int>{4, 4, 4, 4, 4}));
  staged.backward_weight(Microbatch(1));
  EXPECT_EQ(runs_, (std::vector<int>{4, 4, 4, 4, 4}));
}

TEST_F(CheckpointingTest, WithoutItEveryForwardRunsOnce) {
  Stage staged = stage(model(3), {});
  staged.forward(Microbatch(0), x_, true);
  staged.backward(Microbatch(0), gradient_);
  EXPECT_EQ(runs_, (std::vector<int>{1, 1, 1}));
}

TEST_F(CheckpointingTest, OnlyChosenLayersRunAgain) {
  auto layers = model(2);
  layers.insert(layers.begin() + 1, nn::layer<torch::nn::Linear>("fc", kWidth, kWidth));
  layers[2].meta.type = "Other";
  Stage staged = stage(layers, {.interval = 1, .layers = "count"});
  staged.forward(Microbatch(0), x_, true);
  staged.backward(Microbatch(0), gradient_);
  EXPECT_EQ(runs_, (std::vector<int>{2, 1}));
}

TEST_F(CheckpointingTest, GradientsHaveTheSameBits) {
  const auto layers = model(5);
  Stage kept = stage(layers, {});
  const at::Tensor output = kept.forward(Microbatch(0), x_, true)[0];
  const at::Tensor of_input = kept.backward(Microbatch(0), gradient_)[0];
  for (const std::int64_t interval : {1, 2, 5, 9}) {
    Stage again = stage(layers, {.interval = interval});
    EXPECT_TRUE(same_bits(again.forward(Microbatch(0), x_, true)[0], output));
    EXPECT_TRUE(same_bits(again.backward_input(Microbatch(0), gradient_)[0], of_input));
    again.backward_weight(Microbatch(0));
    for (std::size_t p = 0; p < kept.parameters().size(); ++p) {
      EXPECT_TRUE(
          same_bits(again.parameters()[p].tensor.grad(), kept.parameters()[p].tensor.grad()));
    }
  }
}

TEST_F(CheckpointingTest, BatchNormCountsAMicrobatchOnceAndNormalisesWithItsOwnStatistics) {
  const std::vector<nn::LayerSpec> layers = {nn::layer<torch::nn::Linear>("fc", kWidth, kWidth),
                                             nn::layer<torch::nn::BatchNorm1d>("norm", kWidth),
                                             nn::layer<torch::nn::Tanh>("tanh")};
  Stage kept = stage(layers, {}), again = stage(layers, {.interval = 2});
  const at::Tensor y = at::rand({8, kWidth}) * 3;
  for (Stage* each : {&kept, &again}) {
    each->forward(Microbatch(0), x_, true);
    each->forward(Microbatch(1), y, true);
    each->backward(Microbatch(0), gradient_);
    each->backward(Microbatch(1), at::ones({8, kWidth}));
  }
  const auto &states = again.layers().state(), &kept_states = kept.layers().state();
  for (std::size_t i = 0; i < kept_states.size(); ++i) {
    EXPECT_TRUE(same_bits(states[i].tensor, kept_states[i].tensor));
    EXPECT_TRUE(same_bits(states[i].tensor.grad(), kept_states[i].tensor.grad()));
  }
  EXPECT_EQ(states.back().tensor.item<std::int64_t>(), 2) << "num_batches_tracked";
}

TEST_F(CheckpointingTest, ALayerThatChangesItsInputFindsItAgainAsItWas) {
  const std::vector<nn::LayerSpec> layers = {
      nn::layer<torch::nn::ReLU>("relu", torch::nn::ReLUOptions(/*inplace=*/true)),
      nn::layer<torch::nn::Linear>("fc", kWidth, kWidth)};
  const at::Tensor x = at::rand({4, kWidth}) - 0.5;
  Stage kept = stage(layers, {}), again = stage(layers, {.interval = 5});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    nn::Values of_inputs[2];
    for (int i = 0; i < 2; ++i) {
      Stage& each = i == 0 ? kept : again;
      each.forward(Microbatch(microbatch), x.clone().requires_grad_(true), true);
      of_inputs[i] = each.backward(Microbatch(microbatch), gradient_);
    }
    EXPECT_TRUE(same_bits(of_inputs[0][0], of_inputs[1][0])) << "microbatch " << microbatch;
  }
}

TEST_F(CheckpointingTest, AnOutputWithoutAGradientHasNone) {
  const std::vector<nn::LayerSpec> layers = {nn::layer<torch::nn::Tanh>("tanh")};
  Stage staged = stage(layers, {.interval = 1});
  EXPECT_FALSE(staged.forward(Microbatch(0), x_.detach(), true)[0].requires_grad());
  EXPECT_TRUE(staged.forward(Microbatch(1), x_, true)[0].requires_grad());
}

TEST_F(CheckpointingTest, BadPatternsAreRefused) {
  const auto refusal = [&](const std::string& pattern) -> std::string {
    try {
      stage(model(2), {.interval = 1, .layers = pattern});
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(refusal("Block"),
            "checkpointed layers \"Block\": matches no layer; the types are Counted");
  EXPECT_TRUE(refusal("(").starts_with("checkpointed layers \"(\": not a regular expression: "));
}

}  // namespace
}  // namespace penstock::stage
