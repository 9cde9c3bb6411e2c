#include "penstock/runtime/stage/stage.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/nn/gpt.h"
#include "penstock/runtime/nn/mlp.h"

namespace penstock::stage {
namespace {

constexpr std::int64_t kWidth = 6;

at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

std::vector<std::string> names_of(const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> names;
  for (const auto& parameter : parameters) names.push_back(parameter.name);
  return names;
}

// A frozen Linear, then a trainable one, then a BatchNorm.
std::vector<nn::LayerSpec> partly_frozen() {
  return {nn::layer("frozen",
                    [] {
                      torch::nn::Linear linear(kWidth, kWidth);
                      linear->weight.set_requires_grad(false);
                      linear->bias.set_requires_grad(false);
                      return linear;
                    }),
          nn::layer<torch::nn::Linear>("fc", kWidth, kWidth),
          nn::layer<torch::nn::BatchNorm1d>("norm", kWidth)};
}

class StageTest : public testing::Test {
 protected:
  Stage stage(std::int32_t id, const std::vector<nn::LayerSpec>& layers) const {
    return {StageId(id), layers, 0, std::ssize(layers), /*seed=*/1, count};
  }
  std::shared_ptr<ActivationCount> count = std::make_shared<ActivationCount>();
};

TEST_F(StageTest, ActivationsLiveFromForwardToBackwardOverAllStagesOfARank) {
  Stage first = stage(0, nn::mlp_layers(kWidth, 1)), second = stage(1, nn::mlp_layers(kWidth, 1));
  const at::Tensor x = at::rand({4, kWidth});
  first.forward(Microbatch(0), x, /*keep_graph=*/true);
  first.forward(Microbatch(2), x, true);
  second.forward(Microbatch(0), x, true);
  first.forward(Microbatch(1), x, /*keep_graph=*/false);
  EXPECT_EQ(count->alive, 3);
  EXPECT_EQ(count->peak, 3);
  second.backward(Microbatch(0), at::ones({4, kWidth}));
  EXPECT_EQ(count->alive, 2);
  second.forward(Microbatch(1), x, true);
  EXPECT_EQ(count->peak, 3);
  first.drop_activations();
  second.drop_activations();
  EXPECT_EQ(count->alive, 0);
}

TEST_F(StageTest, GradientsAreAutogradsAndAccumulateInTheOrderOfTheCalls) {
  const auto layers = nn::mlp_layers(kWidth, 2);
  Stage staged = stage(1, layers);
  std::vector<std::shared_ptr<nn::Layer>> plain = {nn::build(layers[0], 1, 0),
                                                   nn::build(layers[1], 1, 1)};
  std::vector<at::Tensor> inputs, input_gradients;
  const at::Tensor seed = at::rand({4, kWidth});
  for (std::int32_t m = 0; m < 3; ++m) {
    inputs.push_back(at::rand({4, kWidth}).requires_grad_(true));
  }
  for (std::int32_t m = 0; m < 3; ++m) staged.forward(Microbatch(m), inputs[m], true);
  for (std::int32_t m = 0; m < 3; ++m) {
    input_gradients.push_back(staged.backward(Microbatch(m), seed)[0]);
  }
  for (std::size_t m = 0; m < 3; ++m) {
    const at::Tensor leaf = inputs[m].detach().requires_grad_(true);
    const at::Tensor output = plain[1]->forward(plain[0]->forward(leaf));
    torch::autograd::backward({output}, {seed});
    EXPECT_TRUE(at::equal(leaf.grad(), input_gradients[m]));
  }
  ASSERT_EQ(staged.parameters().size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(
        at::equal(staged.parameters()[i].tensor.grad(), plain[i / 4]->parameters()[i % 4].grad()));
  }
  staged.drop_gradients();
  for (const auto& parameter : staged.parameters()) EXPECT_FALSE(parameter.tensor.grad().defined());
}

TEST_F(StageTest, TwoHalvesGiveWhatOneBackwardGivesAndTheActivationLivesUntilTheSecond) {
  Stage whole = stage(1, nn::mlp_layers(kWidth, 2)), halves = stage(1, nn::mlp_layers(kWidth, 2));
  const at::Tensor seed = at::rand({4, kWidth});
  for (std::int32_t m = 0; m < 2; ++m) {
    const at::Tensor x = at::rand({4, kWidth}).requires_grad_(true);
    whole.forward(Microbatch(m), x, true);
    const at::Tensor of_input = whole.backward(Microbatch(m), seed)[0];
    halves.forward(Microbatch(m), x, true);
    EXPECT_TRUE(at::equal(halves.backward_input(Microbatch(m), seed)[0], of_input));
    EXPECT_EQ(count->alive, m + 1);
  }
  for (const auto& parameter : halves.parameters()) EXPECT_FALSE(parameter.tensor.grad().defined());
  halves.backward_weight(Microbatch(0));
  EXPECT_EQ(count->alive, 1);
  halves.backward_weight(Microbatch(1));
  EXPECT_EQ(count->alive, 0);
  for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
    EXPECT_TRUE(
        at::equal(halves.parameters()[i].tensor.grad(), whole.parameters()[i].tensor.grad()));
  }
}

TEST_F(StageTest, OnlyInputsThatRequireOneGetAGradient) {
  Stage first = stage(0, nn::mlp_layers(kWidth, 1)), second = stage(1, nn::mlp_layers(kWidth, 1));
  const at::Tensor x = at::rand({4, kWidth});
  const nn::Values handed_over = first.forward(Microbatch(0), x, true);
  EXPECT_TRUE(handed_over[0].requires_grad() && handed_over[0].is_leaf());
  EXPECT_FALSE(first.backward(Microbatch(0), at::ones({4, kWidth}))[0].defined());
  second.forward(Microbatch(0), handed_over, true);
  EXPECT_EQ(second.backward(Microbatch(0), at::ones({4, kWidth}))[0].sizes(), x.sizes());
  EXPECT_FALSE(handed_over[0].grad().defined()) << "the caller's tensor must stay as it was";
}

// (x, mask, other) -> (x * weight where the mask has it, mask, other, a count of the mask).
class Masks : public nn::Layer {
 public:
  Masks() : weight_(register_parameter("weight", at::rand({kWidth}))) {}
  nn::Values forward_values(const nn::Values& inputs) override {
    return {at::where(inputs[1], inputs[0] * weight_, inputs[0]), inputs[1], inputs[2],
            inputs[1].sum()};
  }

 private:
  at::Tensor weight_;
};

TEST_F(StageTest, TuplesOfAnyTypesPassAndGradientsComeBackInTheirPlaces) {
  Stage staged = stage(1, {nn::layer("masks", [] { return std::make_shared<Masks>(); })});
  const nn::Values inputs = {at::rand({4, kWidth}).requires_grad_(true),
                             at::rand({4, kWidth}) > 0.5, at::Tensor()};
  const nn::Values outputs = staged.forward(Microbatch(0), inputs, true);
  ASSERT_EQ(outputs.size(), 4u);
  EXPECT_TRUE(outputs[0].requires_grad());
  EXPECT_TRUE(at::equal(outputs[1], inputs[1]));
  EXPECT_FALSE(outputs[2].defined());
  EXPECT_FALSE(outputs[3].requires_grad());
  EXPECT_EQ(outputs[3].scalar_type(), at::kLong);
  const nn::Values gradients = staged.backward(
      Microbatch(0), {at::ones({4, kWidth}), at::Tensor(), at::Tensor(), at::Tensor()});
  ASSERT_EQ(gradients.size(), 3u);
  const at::Tensor& weight = staged.parameters()[0].tensor;
  EXPECT_TRUE(at::equal(gradients[0], at::where(inputs[1], weight.detach(), at::ones({}))));
  EXPECT_FALSE(gradients[1].defined() || gradients[2].defined());
}

TEST_F(StageTest, AGradientThatDoesNotComeLeavesNoneBehind) {
  Stage staged = stage(1, nn::mlp_layers(kWidth, 1));
  staged.forward(Microbatch(0), at::rand({4, kWidth}).requires_grad_(true), true);
  EXPECT_FALSE(staged.backward(Microbatch(0), at::Tensor())[0].defined());
  EXPECT_FALSE(staged.parameters()[0].tensor.grad().defined());
  EXPECT_EQ(count->alive, 0);
}

TEST_F(StageTest, TheFirstLayerMayWorkInPlace) {
  const std::vector<nn::LayerSpec> layers = {
      nn::layer<torch::nn::ReLU>("act", torch::nn::ReLUOptions(/*inplace=*/true)),
      nn::layer<torch::nn::Linear>("fc", kWidth, kWidth)};
  Stage staged = stage(1, layers);
  const at::Tensor x = at::randn({4, kWidth});
  const at::Tensor output =
      staged.forward(Microbatch(0), x.clone().requires_grad_(true), true)[0].detach();
  const at::Tensor gradient = staged.backward(Microbatch(0), at::ones({4, kWidth}))[0];
  const at::Tensor leaf = x.clone().requires_grad_(true);
  const at::Tensor plain = nn::build(layers[1], 1, 1)->forward(leaf.relu());
  torch::autograd::backward({plain}, {at::ones({4, kWidth})});
  EXPECT_TRUE(at::equal(output, plain));
  EXPECT_TRUE(at::equal(gradient, leaf.grad()));
}

TEST_F(StageTest, TheLossIsADetachedScalarAndItsFactorScalesTheGradients) {
  Stage last = stage(1, nn::mlp_layers(kWidth, 1));
  const at::Tensor x = at::rand({4, kWidth}), y = at::rand({4, kWidth});
  const auto gradient = [&](double factor) {
    last.drop_gradients();
    const at::Tensor loss =
        last.forward_loss(Microbatch(0), x, y, mean_squared_error, /*keep_graph=*/true);
    EXPECT_EQ(loss.dim(), 0);
    EXPECT_FALSE(loss.requires_grad());
    EXPECT_EQ(loss.storage().nbytes(), sizeof(float)) << "it outlives the microbatch";
    last.backward(Microbatch(0), at::scalar_tensor(factor));
    return last.parameters()[0].tensor.grad().clone();
  };
  EXPECT_TRUE(at::equal(gradient(1.0) * 0.25, gradient(0.25)));
}

TEST_F(StageTest, FrozenParametersAreSavedButNotTrained) {
  Stage staged = stage(1, partly_frozen());
  EXPECT_EQ(names_of(staged.parameters()),
            (std::vector<std::string>{"fc.weight", "fc.bias", "norm.weight", "norm.bias"}));
  EXPECT_EQ(staged.layers().trained_per_layer(), (std::vector<std::int64_t>{0, 2, 2}));
  EXPECT_EQ(names_of(staged.layers().state()),
            (std::vector<std::string>{"frozen.weight", "frozen.bias", "fc.weight", "fc.bias",
                                      "norm.weight", "norm.bias", "norm.running_mean",
                                      "norm.running_var", "norm.num_batches_tracked"}));
  staged.forward(Microbatch(0), at::rand({8, kWidth}).requires_grad_(true), true);
  EXPECT_TRUE(staged.backward(Microbatch(0), at::ones({8, kWidth}))[0].defined());
  EXPECT_FALSE(staged.layers().state()[0].tensor.grad().defined());
  EXPECT_TRUE(staged.layers().state()[2].tensor.grad().defined());
}

TEST_F(StageTest, BuffersInStateAreTheOnesThatTrainingMoves) {
  Stage staged = stage(0, partly_frozen());
  const at::Tensor before = staged.layers().state()[6].tensor.clone();
  staged.forward(Microbatch(0), at::rand({8, kWidth}), true);
  EXPECT_FALSE(at::equal(staged.layers().state()[6].tensor, before));
  const at::Tensor after = staged.layers().state()[6].tensor.clone();
  staged.forward(Microbatch(1), at::rand({8, kWidth}), /*keep_graph=*/false);
  EXPECT_TRUE(at::equal(staged.layers().state()[6].tensor, after)) << "evaluation moves nothing";
}

TEST_F(StageTest, WithoutAGraphLayersAreInEvalModeAndTrainAgainAfterwards) {
  Stage staged = stage(0, {nn::layer<torch::nn::Dropout>("drop", 0.5)});
  const at::Tensor x = at::ones({128});
  EXPECT_TRUE(at::equal(staged.forward(Microbatch(0), x, /*keep_graph=*/false)[0], x));
  EXPECT_FALSE(at::equal(staged.forward(Microbatch(0), x, true)[0], x));
  staged.drop_activations();
  EXPECT_TRUE(at::equal(staged.forward(Microbatch(0), x, false)[0], x));
}

TEST_F(StageTest, WhatIsInEvalModeWhileItTrainsStaysInItAfterAnEvaluation) {
  const auto frozen_norm = [] {
    torch::nn::BatchNorm1d norm(kWidth);
    norm->eval();
    return torch::nn::Sequential(torch::nn::Linear(kWidth, kWidth), norm);
  };
  Stage staged =
      stage(0, {nn::layer("fc", frozen_norm), nn::layer<torch::nn::BatchNorm1d>("bn", 6)});
  const at::Tensor x = at::rand({8, kWidth});
  const auto buffer = [&](const std::string& name) {
    const auto& state = staged.layers().state();
    return std::ranges::find(state, name, &NamedParameter::name)->tensor;
  };
  const at::Tensor frozen = buffer("fc.1.running_mean").clone();
  const at::Tensor moving = buffer("bn.running_mean").clone();
  staged.forward(Microbatch(0), x, /*keep_graph=*/false);
  EXPECT_TRUE(at::equal(buffer("bn.running_mean"), moving));
  staged.forward(Microbatch(0), x, /*keep_graph=*/true);
  EXPECT_TRUE(at::equal(buffer("fc.1.running_mean"), frozen));
  EXPECT_FALSE(at::equal(buffer("bn.running_mean"), moving));
}

TEST_F(StageTest, AFrozenStagePassesWithoutAGradient) {
  Stage staged = stage(0, {partly_frozen()[0]});
  EXPECT_FALSE(staged.forward(Microbatch(0), at::rand({2, kWidth}), true)[0].requires_grad());
  EXPECT_FALSE(staged.backward(Microbatch(0), at::Tensor())[0].defined());
  EXPECT_EQ(count->alive, 0);
}

TEST_F(StageTest, ALossThatNothingTrainableReachesSaysSo) {
  Stage staged = stage(0, {partly_frozen()[0]});
  const at::Tensor x = at::rand({2, kWidth});
  try {
    staged.forward_loss(Microbatch(0), x, x, mean_squared_error, /*keep_graph=*/true);
    ADD_FAILURE() << "a loss without parameters passed";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("the loss does not require a gradient"), std::string::npos)
        << error.message();
  }
  EXPECT_EQ(count->alive, 0);
}

TEST_F(StageTest, ALossThatIsNoScalarIsRefusedWithItsShape) {
  Stage last = stage(0, nn::mlp_layers(kWidth, 1));
  const auto per_sample = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).pow(2).mean(1);
  };
  try {
    last.forward_loss(Microbatch(0), at::rand({4, kWidth}), at::rand({4, kWidth}), per_sample,
                      true);
    ADD_FAILURE() << "a loss of four numbers passed";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("shape [4]"), std::string::npos) << error.message();
  }
  EXPECT_EQ(count->alive, 0);
}

TEST_F(StageTest, ALossOfOneNumberIsOneWhateverItsDimensions) {
  Stage last = stage(1, nn::mlp_layers(kWidth, 1));
  const at::Tensor x = at::rand({4, kWidth}), y = at::rand({4, kWidth});
  const auto gradient = [&](const nn::Loss& loss) {
    last.drop_gradients();
    EXPECT_EQ(last.forward_loss(Microbatch(0), x, y, loss, true).dim(), 0);
    last.backward(Microbatch(0), at::scalar_tensor(0.5));
    return last.parameters()[0].tensor.grad().clone();
  };
  const auto of_shape_1 = [](const at::Tensor& output, const at::Tensor& target) {
    return mean_squared_error(output, target).unsqueeze(0);
  };
  EXPECT_TRUE(at::equal(gradient(of_shape_1), gradient(mean_squared_error)));
}

using StageDeathTest = StageTest;

TEST_F(StageDeathTest, ABackwardWithoutItsForwardIsABug) {
  Stage staged = stage(0, nn::mlp_layers(kWidth, 1));
  EXPECT_DEATH(staged.backward(Microbatch(3), at::ones({1})),
               "stage 0 microbatch 3 has no activation");
  staged.forward(Microbatch(0), at::rand({2, kWidth}), true);
  staged.backward(Microbatch(0), at::ones({2, kWidth}));
  EXPECT_DEATH(staged.backward(Microbatch(0), at::ones({2, kWidth})), "has no activation");
}

TEST_F(StageDeathTest, AWWithoutItsIIsABug) {
  Stage staged = stage(0, nn::mlp_layers(kWidth, 1));
  staged.forward(Microbatch(2), at::rand({2, kWidth}), true);
  EXPECT_DEATH(staged.backward_weight(Microbatch(2)), "stage 0 microbatch 2 has had no I");
}

TEST_F(StageDeathTest, TwoForwardsOfOneMicrobatchAreABug) {
  Stage staged = stage(0, nn::mlp_layers(kWidth, 1));
  staged.forward(Microbatch(0), at::rand({2, kWidth}), true);
  EXPECT_DEATH(staged.forward(Microbatch(0), at::rand({2, kWidth}), true), "runs forward twice");
}

}  // namespace
}  // namespace penstock::stage
