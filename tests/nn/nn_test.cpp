#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <stdexcept>
#include <thread>

#include "penstock/nn/gpt.h"
#include "penstock/nn/layer.h"
#include "penstock/runtime/nn/mlp.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

constexpr GptOptions kSmall{.layers = 3, .hidden = 12, .heads = 3, .sequence_length = 7};

using testing_support::same_bits;

void expect_same_bits(Layer& a, Layer& b) {
  const auto of_a = a.named_parameters(), of_b = b.named_parameters();
  ASSERT_EQ(of_a.size(), of_b.size());
  for (const auto& parameter : of_a) {
    EXPECT_TRUE(same_bits(parameter.value(), of_b[parameter.key()])) << parameter.key();
  }
}

std::int64_t trainable(const Layer& layer) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : layer.parameters()) {
    if (parameter.requires_grad()) count += parameter.numel();
  }
  return count;
}

at::Tensor run(const std::vector<LayerSpec>& specs, at::Tensor value) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    value = build(specs[i], 1, static_cast<std::int64_t>(i))->forward(value);
  }
  return value;
}

TEST(Layers, ParameterCountsAreTheirMetas) {
  for (const auto& specs : {gpt_layers(kSmall), byte_mlp_layers(kSmall), mlp_layers(5, 2),
                            gpt_layers({.layers = 0, .hidden = 8, .heads = 1})}) {
    for (const LayerSpec& spec : specs) {
      EXPECT_EQ(trainable(*build(spec, 1, 0)), spec.meta.parameters) << spec.meta.name;
    }
  }
}

TEST(Gpt, ShapesAreTokensHiddenAndLogits) {
  const at::Tensor tokens = at::randint(256, {2, 7}, at::kLong);
  for (const auto& specs : {gpt_layers(kSmall), byte_mlp_layers(kSmall)}) {
    ASSERT_EQ(specs.size(), 5u);
    at::Tensor value = tokens;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      value = build(specs[i], 1, static_cast<std::int64_t>(i))->forward(value);
      const std::int64_t width = i + 1 < specs.size() ? kSmall.hidden : kVocabulary;
      EXPECT_EQ(value.sizes(), (at::IntArrayRef{2, 7, width})) << specs[i].meta.name;
    }
  }
}

TEST(Gpt, ParametersHaveGpt2sNames) {
  const auto specs = gpt_layers({.layers = 1, .hidden = 4, .heads = 1, .sequence_length = 2});
  std::vector<std::string> names;
  for (const auto& spec : specs) {
    for (const auto& parameter : build(spec, 1, 0)->named_parameters()) {
      names.push_back(spec.meta.name + "." + parameter.key());
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "transformer.wte.weight", "transformer.wpe.weight",
                       "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias",
                       "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
                       "transformer.h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.bias",
                       "transformer.h.0.ln_2.weight", "transformer.h.0.ln_2.bias",
                       "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_fc.bias",
                       "transformer.h.0.mlp.c_proj.weight", "transformer.h.0.mlp.c_proj.bias",
                       "head.ln_f.weight", "head.ln_f.bias", "head.lm_head.weight"}));
}

TEST(Gpt, ALaterTokenDoesNotChangeEarlierLogitsAndAnEarlierOneDoes) {
  const auto specs = gpt_layers(kSmall);
  const at::Tensor tokens = at::randint(256, {1, 7}, at::kLong);
  const at::Tensor before = run(specs, tokens);
  for (std::int64_t changed = 0; changed < 7; ++changed) {
    const at::Tensor other = tokens.clone();
    other[0][changed] = (tokens[0][changed] + 1) % 256;
    const at::Tensor after = run(specs, other);
    EXPECT_TRUE(at::equal(after.narrow(1, 0, changed), before.narrow(1, 0, changed)));
    for (std::int64_t t = changed; t < 7; ++t) {
      EXPECT_FALSE(at::equal(after[0][t], before[0][t])) << changed << " -> " << t;
    }
  }
}

TEST(Gpt, WithoutAttentionAPositionSeesItsOwnTokenOnly) {
  const auto specs = byte_mlp_layers(kSmall);
  const at::Tensor tokens = at::randint(256, {1, 7}, at::kLong);
  const at::Tensor other = tokens.clone();
  other[0][2] = (tokens[0][2] + 1) % 256;
  const at::Tensor before = run(specs, tokens), after = run(specs, other);
  for (std::int64_t t = 0; t < 7; ++t) {
    EXPECT_EQ(at::equal(after[0][t], before[0][t]), t != 2) << t;
  }
}

TEST(Loss, IsTheMeanNegativeLogProbabilityOfTheNextByte) {
  const at::Tensor logits = at::rand({2, 3, 256}) * 8;
  const at::Tensor targets = at::randint(256, {2, 3}, at::kLong);
  double sum = 0.0;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 3; ++t) {
      double total = 0.0;
      for (std::int64_t v = 0; v < 256; ++v) total += std::exp(logits[b][t][v].item<double>());
      sum -= logits[b][t][targets[b][t].item<std::int64_t>()].item<double>() - std::log(total);
    }
  }
  EXPECT_NEAR(next_byte_loss(logits, targets).item<double>(), sum / 6, 1e-6);
}

TEST(Build, BitsDependOnSeedAndIndexAlone) {
  const auto specs = gpt_layers(kSmall);
  const auto alone = build(specs[2], 7, 2);
  for (const std::int64_t i : {4, 0, 3, 1}) build(specs[static_cast<std::size_t>(i)], 7, i);
  expect_same_bits(*build(specs[2], 7, 2), *alone);
  // The recipe of another block is the same, so only the index tells them apart.
  expect_same_bits(*build(specs[1], 7, 2), *alone);
  const auto weight = [](Layer& layer) { return layer.named_parameters()["mlp.c_fc.weight"]; };
  EXPECT_FALSE(at::equal(weight(*build(specs[2], 7, 1)), weight(*alone)));
  EXPECT_FALSE(at::equal(weight(*build(specs[2], 8, 2)), weight(*alone)));
}

TEST(Build, ParametersAreContiguousWhateverALayerMakes) {
  class Transposed : public Layer {
   public:
    Transposed() : weight_(register_parameter("weight", at::rand({3, 4}).t())) {}
    at::Tensor forward(const at::Tensor& input) override { return input.matmul(weight_); }

   private:
    at::Tensor weight_;
  };
  const LayerSpec spec = layer("t", [] { return std::make_shared<Transposed>(); });
  const auto built = build(spec, 1, 0);
  const at::Tensor weight = built->parameters()[0];
  EXPECT_TRUE(weight.is_contiguous());
  EXPECT_EQ(weight.sizes(), (at::IntArrayRef{4, 3}));
  built->forward(at::rand({2, 4})).sum().backward();
  EXPECT_EQ(weight.grad().strides(), weight.strides()) << "the layer uses the same tensor";
}

TEST(Build, ThreadsGetTheSameBits) {
  const auto specs = gpt_layers(kSmall);
  const auto expected = build(specs[1], 3, 1);
  std::vector<std::shared_ptr<Layer>> built(4);
  std::vector<std::thread> threads;
  for (auto& place : built) threads.emplace_back([&] { place = build(specs[1], 3, 1); });
  for (auto& thread : threads) thread.join();
  for (const auto& layer : built) expect_same_bits(*layer, *expected);
}

TEST(Build, LeavesTorchsGeneratorAsItWas) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  at::rand({3});
  const at::Tensor before = generator.get_state().clone();
  build(gpt_layers(kSmall)[1], 5, 1);
  EXPECT_TRUE(at::equal(generator.get_state(), before));
  const LayerSpec throws{{"bad", "Bad"}, []() -> std::shared_ptr<Layer> {
                           at::rand({9});
                           throw std::runtime_error("no such layer");
                         }};
  EXPECT_THROW(build(throws, 5, 1), std::runtime_error);
  EXPECT_TRUE(at::equal(generator.get_state(), before));
}

TEST(Layer, WrapsATorchModuleUnderItsOwnNames) {
  std::vector<LayerSpec> specs = {layer<torch::nn::Linear>("fc", 3, 5),
                                  layer<torch::nn::ReLU>("act"),
                                  layer<torch::nn::BatchNorm1d>("norm", 5)};
  count_parameters(specs);
  const auto meta = meta_of(specs);
  EXPECT_EQ(meta[0].name, "fc");
  EXPECT_EQ(meta[0].type, "Linear");
  EXPECT_EQ(meta[0].parameters, 3 * 5 + 5);
  EXPECT_EQ(meta[1].type, "ReLU");
  EXPECT_EQ(meta[1].parameters, 0);
  EXPECT_EQ(meta[2].type, "BatchNorm1d");
  EXPECT_EQ(meta[2].parameters, 10);
  const auto linear = build(specs[0], 1, 0);
  EXPECT_EQ(linear->named_parameters().keys(), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(build(specs[2], 1, 2)->named_buffers().keys(),
            (std::vector<std::string>{"running_mean", "running_var", "num_batches_tracked"}));
  const at::Tensor x = at::rand({4, 3});
  const auto parameters = linear->named_parameters();
  EXPECT_TRUE(
      at::equal(linear->forward(x), at::linear(x, parameters["weight"], parameters["bias"])));
}

TEST(Layer, WrapsWhatAFunctionMakesAndEachRankGetsItsOwn) {
  std::vector<LayerSpec> specs = {layer("mlp", [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Tanh(),
                                 torch::nn::Linear(4, 2));
  })};
  count_parameters(specs);
  EXPECT_EQ(specs[0].meta.type, "Sequential");
  EXPECT_EQ(specs[0].meta.parameters, 3 * 4 + 4 + 4 * 2 + 2);
  const auto a = build(specs[0], 1, 0), b = build(specs[0], 1, 0);
  expect_same_bits(*a, *b);
  EXPECT_NE(a->parameters()[0].const_data_ptr(), b->parameters()[0].const_data_ptr());
  EXPECT_EQ(a->named_parameters().keys(),
            (std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"}));
  EXPECT_EQ(a->forward(at::rand({6, 3})).sizes(), (at::IntArrayRef{6, 2}));
}

// A user's module without TORCH_MODULE.
struct Scale : torch::nn::Module {
  Scale() { factor = register_parameter("factor", at::ones({1})); }
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
  at::Tensor factor;
};

TEST(Layer, WrapsASharedPointerToAUsersModule) {
  std::vector<LayerSpec> specs = {layer("scale", [] { return std::make_shared<Scale>(); })};
  count_parameters(specs);
  EXPECT_EQ(specs[0].meta.type, "Scale");
  EXPECT_EQ(specs[0].meta.parameters, 1);
  EXPECT_EQ(build(specs[0], 1, 0)->forward(at::ones({2})).sum().item<double>(), 2.0);
}

TEST(Layer, EvalReachesTheWrappedModuleItself) {
  const auto dropout = build(layer<torch::nn::Dropout>("drop", 0.5), 1, 0);
  const at::Tensor x = at::ones({64});
  EXPECT_FALSE(at::equal(dropout->forward(x), x));
  dropout->eval();
  EXPECT_TRUE(at::equal(dropout->forward(x), x));
  dropout->train();
  EXPECT_FALSE(at::equal(dropout->forward(x), x));
}

TEST(CountParameters, KeepsWhatIsKnownAndLeavesFrozenOnesOut) {
  std::vector<LayerSpec> specs = {layer("frozen",
                                        [] {
                                          torch::nn::Linear linear(2, 3);
                                          linear->bias.set_requires_grad(false);
                                          return linear;
                                        }),
                                  {{"known", "Known", 42}, nullptr}};
  count_parameters(specs);
  EXPECT_EQ(specs[0].meta.parameters, 6);
  EXPECT_EQ(specs[1].meta.parameters, 42);
}

}  // namespace
}  // namespace penstock::nn
