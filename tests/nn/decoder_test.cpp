#include "penstock/nn/decoder.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <map>

#include "penstock/core/text.h"
#include "penstock/nn/model.h"

namespace penstock::nn {
namespace {

DecoderOptions small() {
  return {.vocabulary = 40,
          .layers = 2,
          .hidden = 16,
          .intermediate = 24,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 6};
}

DecoderOptions small_gpt2() {
  return {.form = DecoderForm::Gpt2,
          .vocabulary = 40,
          .layers = 2,
          .hidden = 16,
          .intermediate = 64,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 4,
          .norm = NormKind::Layer,
          .mlp = MlpKind::GeluTanh,
          .rotary = std::nullopt,
          .positions = 12,
          .qkv_bias = true,
          .output_bias = true,
          .mlp_bias = true,
          .tie_embeddings = true};
}

DecoderOptions with_everything() {
  DecoderOptions options = small();
  options.qkv_bias = options.output_bias = options.mlp_bias = true;
  options.normalizes_queries_and_keys = true;
  options.windows = {std::nullopt, 3};
  options.tie_embeddings = true;
  return options;
}

at::Tensor run(const std::vector<LayerSpec>& specs, at::Tensor value) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    value = build_layer(specs, 1, static_cast<std::int64_t>(i)).layer->forward(value);
  }
  return value;
}

TEST(Decoder, ItsParametersAreThoseOfItsLayers) {
  for (const DecoderOptions& options : {small(), small_gpt2(), with_everything()}) {
    const auto specs = decoder_layers(options);
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const BuiltLayer built = build_layer(specs, 1, static_cast<std::int64_t>(i));
      std::int64_t count = 0;
      for (const ModelParameter& each : parameters_of(built, specs[i].meta.name)) {
        count += each.tensor.numel();
        if (!each.is_copy) shapes[each.name] = each.tensor.sizes().vec();
      }
      EXPECT_EQ(count, specs[i].meta.parameters) << specs[i].meta.name;
    }
    const auto parameters = decoder_parameters(options);
    EXPECT_EQ(parameters.size(), shapes.size());
    for (const DecoderParameter& each : parameters) EXPECT_EQ(shapes[each.name], each.shape);
  }
}

TEST(Decoder, ParametersAreFilledByTheirNamesAndATiedHeadAsTheEmbedding) {
  std::map<std::string, int> filled;
  const auto specs = decoder_layers(with_everything(), [&](const std::string& name, at::Tensor& p) {
    ++filled[name];
    p.fill_(0.5);
  });
  for (std::size_t i = 0; i < specs.size(); ++i) build(specs[i], 1, static_cast<std::int64_t>(i));
  EXPECT_EQ(filled.size(), decoder_parameters(with_everything()).size());
  for (const auto& [name, times] : filled) {
    EXPECT_EQ(times, name == "model.embed_tokens.weight" ? 2 : 1) << name;
  }
}

TEST(Decoder, ALaterTokenDoesNotChangeEarlierLogitsAndAnEarlierOneDoes) {
  for (const DecoderOptions& options : {small(), small_gpt2()}) {
    const auto specs = decoder_layers(options);
    const at::Tensor tokens = at::randint(40, {1, 7}, at::kLong);
    const at::Tensor before = run(specs, tokens);
    EXPECT_EQ(before.sizes(), (at::IntArrayRef{1, 7, 40}));
    for (std::int64_t changed = 0; changed < 7; ++changed) {
      const at::Tensor other = tokens.clone();
      other[0][changed] = (tokens[0][changed] + 1) % 40;
      const at::Tensor after = run(specs, other);
      EXPECT_TRUE(at::equal(after.narrow(1, 0, changed), before.narrow(1, 0, changed)));
      for (std::int64_t t = changed; t < 7; ++t) {
        EXPECT_FALSE(at::equal(after[0][t], before[0][t])) << changed << " -> " << t;
      }
    }
  }
}

TEST(Decoder, AWindowEndsWhatATokenReaches) {
  DecoderOptions options = small();
  options.windows = {3, 3};
  const auto specs = decoder_layers(options);
  const at::Tensor tokens = at::randint(40, {1, 9}, at::kLong);
  const at::Tensor other = tokens.clone();
  other[0][1] = (tokens[0][1] + 1) % 40;
  const at::Tensor before = run(specs, tokens), after = run(specs, other);
  for (std::int64_t t = 0; t < 9; ++t) {  // Two layers reach two tokens each, besides their own.
    EXPECT_EQ(at::equal(after[0][t], before[0][t]), t < 1 || t > 5) << t;
  }
}

TEST(Decoder, LengthsMayChangeBetweenCalls) {
  const auto specs = decoder_layers(with_everything());
  std::vector<std::shared_ptr<Layer>> layers;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    layers.push_back(build_layer(specs, 1, static_cast<std::int64_t>(i)).layer);
  }
  const torch::NoGradGuard no_grad;
  const auto of = [&](at::Tensor value) {
    for (const auto& layer : layers) value = layer->forward(value);
    return value;
  };
  const at::Tensor tokens = at::randint(40, {2, 9}, at::kLong);
  const at::Tensor whole = of(tokens);
  EXPECT_TRUE(at::allclose(of(tokens.slice(1, 0, 4)), whole.slice(1, 0, 4), 1e-4, 1e-6));
  EXPECT_TRUE(at::equal(of(tokens), whole));
}

}  // namespace
}  // namespace penstock::nn
