#include <torch/nn/modules.h>

#include "penstock/nn/gpt.h"
#include "penstock/runtime/stage/backward.h"
#include "tests/stage/split_cases.h"
#include "tests/support/operator_names.h"

namespace penstock::stage {

using testing_support::OperatorNames;

namespace {

at::Tensor weight(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }
at::Tensor input(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }

TEST(SplitBackward, AStackOfLinearsHasTheBitsOfOneBackward) {
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{5, 6}, {5, 3, 6}}) {
    expect_split_equals_whole({.weights = {weight({8, 6}), weight({8}), weight({7, 8})},
                               .inputs = {input(sizes)},
                               .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                                 return {at::linear(at::relu(at::linear(x[0], w[0], w[1])), w[2])};
                               }});
  }
}

TEST(SplitBackward, AWeightUsedTwiceIsSummedAsInOneBackward) {
  expect_split_equals_whole({.weights = {weight({6, 6})},
                             .inputs = {input({4, 6})},
                             .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                               at::Tensor value = x[0];
                               for (int use = 0; use < 5; ++use) {
                                 value = at::tanh(at::linear(value, w[0]));
                               }
                               return {value};
                             }});
}

TEST(SplitBackward, BranchesThatMeetAreSummedInTheEnginesOrder) {
  expect_split_equals_whole({.weights = {weight({6, 6}), weight({6})},
                             .inputs = {input({4, 6})},
                             .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                               const at::Tensor near = at::linear(x[0], w[0], w[1]);
                               const at::Tensor far = at::linear(at::tanh(near), w[0], w[1]);
                               const at::Tensor side = at::linear(at::sin(x[0]), w[0]) * w[1];
                               return {near + (at::gelu(near) + far) * side + x[0]};
                             }});
}

TEST(SplitBackward, ATiedWeightMayBeAnEmbeddingAndAHead) {
  const auto ids = at::tensor({1, 3, 0, 3}, at::kLong);
  expect_split_equals_whole({.weights = {weight({5, 6}), weight({6, 6})},
                             .inputs = {ids},
                             .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                               const auto hidden = at::linear(at::embedding(w[0], x[0]), w[1]);
                               return {at::linear(at::gelu(hidden), w[0])};
                             }});
}

TEST(SplitBackward, WeightsMayBeTransposedCastScaledAndMasked) {
  const at::Tensor mask = at::rand({6, 8}) > 0.5;
  expect_split_equals_whole(
      {.weights = {weight({6, 8}), weight({8, 8}), weight({8, 8}), weight({6, 8})},
       .inputs = {input({4, 6})},
       .forward = [mask](const Tensors& x, const Tensors& w) -> Tensors {
         at::Tensor value = at::mm(x[0], w[0]);
         value = at::mm(value.to(at::kBFloat16), w[1].to(at::kBFloat16).t()).to(at::kFloat);
         value = at::linear(value, 0.125 * w[2]);
         return {at::mm(value, (w[3] * mask).t())};
       }});
}

TEST(SplitBackward, AWeightNormUsedTwiceIsGoneThroughOnce) {
  const Computation normed{.weights = {weight({6, 6}), weight({6, 1})},
                           .inputs = {input({4, 6})},
                           .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                             const auto v = w[1] * w[0] / w[0].norm(2, 1, true);
                             return {at::linear(at::tanh(at::linear(x[0], v)), v)};
                           }};
  expect_split_equals_whole(normed);
  Microbatches whole(normed, 1), split(normed, 1);
  const OperatorNames names;
  whole.run_whole();
  const std::int64_t of_one_backward = OperatorNames::take("aten::div");
  EXPECT_GT(of_one_backward, 0);
  split.run_split();
  EXPECT_EQ(OperatorNames::take("aten::div"), of_one_backward);
}

TEST(SplitBackward, LowRankAdaptersLeaveTheFrozenWeightAlone) {
  const at::Tensor frozen = at::randn({6, 6});
  const Computation beside{
      .weights = {frozen, weight({2, 6}), weight({6, 2})},
      .inputs = {input({4, 6})},
      .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
        return {at::linear(x[0], w[0]) + 0.5 * at::linear(at::linear(x[0], w[1]), w[2])};
      }};
  const Computation merged{.weights = {frozen, weight({2, 6}), weight({6, 2})},
                           .inputs = {input({4, 6})},
                           .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                             return {at::linear(x[0], w[0] + 0.5 * at::mm(w[2], w[1]))};
                           }};
  expect_split_equals_whole(beside);
  expect_split_equals_whole(merged);
}

TEST(SplitBackward, SeveralInputsAndOutputsOfWhichSomeTakeNoGradient) {
  const Computation several{
      .weights = {weight({6, 6}), weight({6, 6}), weight({6, 6})},
      .inputs = {input({4, 6}), at::rand({4, 6}) > 0.5, input({4, 6}), input({4, 6}),
                 at::tensor({0, 1, 2, 3}, at::kLong)},
      // An input handed on, a weight handed out, two that meet, one that nothing uses.
      .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
        const auto meet = at::linear(x[0], w[0]) * x[1] + at::linear(x[2], w[1]);
        return {meet, x[1].logical_not(), x[2], w[2], at::tanh(meet).index_select(0, x[4])};
      }};
  expect_split_equals_whole(several);
  for (const std::size_t dropped : {0, 2, 3, 4}) {
    Microbatches whole(several, 2), split(several, 2);
    whole.drop_seed(dropped);
    split.drop_seed(dropped);
    expect_equal(split.run_split(), whole.run_whole());
  }
}

TEST(SplitBackward, OneTensorMayBeTwoOutputs) {
  const Computation twice{.weights = {weight({6, 6})},
                          .inputs = {input({4, 6})},
                          .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                            const at::Tensor y = at::linear(x[0], w[0]);
                            return {y, y};
                          }};
  expect_split_equals_whole(twice);
}

TEST(SplitBackward, LayersWithoutWeightsAreAllI) {
  const Computation plain{.weights = {},
                          .inputs = {input({4, 6})},
                          .forward = [](const Tensors& x, const Tensors&) -> Tensors {
                            return {at::softmax(at::gelu(x[0]), 1)};
                          }};
  expect_split_equals_whole(plain);
}

TEST(SplitBackward, UnusedAndFrozenWeightsGetNoGradient) {
  const Computation partly{.weights = {weight({6, 6}), weight({6, 6}), at::randn({6, 6})},
                           .inputs = {input({4, 6})},
                           .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                             return {at::linear(at::relu(at::linear(x[0], w[2])), w[0])};
                           }};
  expect_split_equals_whole(partly);
  Microbatches run(partly, 1);
  EXPECT_FALSE(run.run_split().of_weights[1].defined());
}

TEST(SplitBackward, OperatorsInPlaceAndOnViewsAreFollowed) {
  expect_split_equals_whole({.weights = {weight({6, 6}), weight({3})},
                             .inputs = {input({4, 6})},
                             .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                               at::Tensor value = at::linear(x[0], w[0]);
                               value.narrow(1, 1, 3).mul_(w[1]);
                               value.narrow(1, 0, 2).relu_();
                               return {at::linear(value, w[0]).add_(2.0).sigmoid_()};
                             }});
}

TEST(SplitBackward, ASparseGradientStaysSparse) {
  const Computation sparse{.weights = {weight({9, 6})},
                           .inputs = {at::tensor({1, 3, 3, 8}, at::kLong)},
                           .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                             const auto once = at::embedding(w[0], x[0], -1, false, true);
                             return {once + at::embedding(w[0], x[0].flip(0), -1, false, true)};
                           }};
  expect_split_equals_whole(sparse);
  EXPECT_TRUE(Microbatches(sparse, 1).run_split().of_weights[0].is_sparse());
}

// The module's own parameters as the weights.
template <class Module>
Computation of_module(Module module, Tensors inputs) {
  return {.weights = module->parameters(),
          .inputs = std::move(inputs),
          .forward = [module](const Tensors& x, const Tensors&) mutable -> Tensors {
            return {module->forward(x[0])};
          }};
}

TEST(SplitBackward, NormsConvolutionsAndAttentionHaveTheBitsOfOneBackward) {
  using namespace torch::nn;
  expect_split_equals_whole(of_module(LayerNorm(LayerNormOptions({6})), {input({4, 6})}));
  expect_split_equals_whole(of_module(BatchNorm1d(6), {input({4, 6})}));
  expect_split_equals_whole(of_module(GroupNorm(2, 6), {input({4, 6, 5})}));
  expect_split_equals_whole(
      of_module(Conv2d(Conv2dOptions(3, 4, 3).padding(1)), {input({2, 3, 7, 7})}));
  expect_split_equals_whole(
      of_module(Sequential(Conv1d(3, 4, 3), PReLU(), ConvTranspose1d(4, 3, 3), Dropout(0.3)),
                {input({2, 3, 9})}));
}

TEST(SplitBackward, RecurrentLayersHaveTheBitsOfOneBackward) {
  const auto recurrent = [](auto module) {
    return Computation{.weights = module->parameters(),
                       .inputs = {input({5, 2, 6})},
                       .forward = [module](const Tensors& x, const Tensors&) mutable -> Tensors {
                         return {std::get<0>(module->forward(x[0]))};
                       }};
  };
  expect_split_equals_whole(recurrent(torch::nn::LSTM(6, 4)));
  expect_split_equals_whole(recurrent(torch::nn::GRU(6, 4)));
}

TEST(SplitBackward, AGptHasTheBitsOfOneBackwardFromTheWordsToTheHead) {
  const auto specs = nn::gpt_layers({.layers = 2, .hidden = 12, .heads = 3, .sequence_length = 8});
  std::vector<std::shared_ptr<nn::Layer>> layers;
  Computation gpt{
      .weights = {}, .inputs = {at::randint(nn::kVocabulary, {2, 8}, at::kLong)}, .forward = {}};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    layers.push_back(nn::build(specs[i], 1, static_cast<std::int64_t>(i)));
    for (const at::Tensor& parameter : layers.back()->parameters()) {
      gpt.weights.push_back(parameter);
    }
  }
  gpt.forward = [layers](const Tensors& x, const Tensors&) -> Tensors {
    at::Tensor value = x[0];
    for (const auto& layer : layers) value = layer->forward(value);
    return {value};
  };
  expect_split_equals_whole(gpt);
}

}  // namespace
}  // namespace penstock::stage
