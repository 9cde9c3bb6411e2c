#include "penstock/nn/decoder.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <map>

#include "penstock/core/text.h"
#include "penstock/runtime/nn/model.h"
#include "tests/support/decoder_families.h"

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

std::vector<DecoderOptions> all_kinds() {
  std::vector<DecoderOptions> all = {small(), small_gpt2(), with_everything()};
  for (const char* const family : testing_support::kDecoderFamilies) {
    all.push_back(testing_support::of_family(family, small()));
  }
  return all;
}

at::Tensor run(const std::vector<LayerSpec>& specs, at::Tensor value) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    value = build_layer(specs, 1, static_cast<std::int64_t>(i)).layer->forward(value);
  }
  return value;
}

TEST(Decoder, ItsParametersAreThoseOfItsLayers) {
  for (const DecoderOptions& options : all_kinds()) {
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

TEST(Decoder, EmbeddingsAreScaledByTheNumberOrByTheNearestOneOfTheirType) {
  DecoderOptions options = small();
  options.embedding_scale = 10.3;  // 10.3125 is the nearest one of bf16.
  const at::Tensor tokens = at::randint(options.vocabulary, {2, 5}, at::kLong);
  for (const bool rounds : {false, true}) {
    options.rounds_embedding_scale = rounds;
    const auto layer = build_layer(decoder_layers(options, normal_parameters()), 1, 0).layer;
    layer->to(at::kBFloat16);
    const torch::NoGradGuard no_grad;
    const at::Tensor rows = layer->named_parameters()["weight"].to(at::kFloat).index({tokens});
    const at::Tensor scaled = (rows * (rounds ? 10.3125 : 10.3)).to(at::kBFloat16);
    EXPECT_TRUE(at::equal(layer->forward(tokens), scaled)) << rounds;
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

// A decoder whose attentions are far from even, with tokens that go through it piece by piece.
class Continued {
 public:
  explicit Continued(const DecoderOptions& options)
      : specs_(decoder_layers(options, normal_parameters(0.3))), caches_(specs_.size()) {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      layers_.push_back(std::dynamic_pointer_cast<DecoderLayer>(
          build_layer(specs_, 1, static_cast<std::int64_t>(i)).layer));
    }
  }

  at::Tensor whole(const at::Tensor& tokens) const { return run(specs_, tokens); }

  at::Tensor more(const at::Tensor& tokens) {
    const torch::NoGradGuard no_grad;
    at::Tensor x = tokens;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      x = layers_[i]->continue_behind(past_, caches_[i], x);
    }
    past_ += tokens.size(1);
    return x;
  }

 private:
  std::vector<LayerSpec> specs_;
  std::vector<std::shared_ptr<DecoderLayer>> layers_;
  std::vector<KeyValueCache> caches_;
  std::int64_t past_ = 0;
};

// Rounding: a sum has 64 terms or fewer, so an error of 64 x 2^-24 of it, and some 10 sums follow
// one another in 2 layers: 4e-5 of the largest logit.
TEST(Decoder, GoesOnBehindWhatItHasSeen) {
  for (const DecoderOptions& options : all_kinds()) {
    Continued decoder(options);
    const at::Tensor tokens = at::randint(40, {3, 12}, at::kLong);
    const at::Tensor whole = decoder.whole(tokens);
    const double bound = 4e-5 * whole.abs().max().item<double>();
    std::int64_t done = 0;
    for (const std::int64_t count : {4, 1, 1, 3, 2, 1}) {
      const at::Tensor piece = tokens.slice(1, done, done + count);
      const at::Tensor logits = decoder.more(piece);
      if (done == 0) {
        EXPECT_TRUE(at::equal(logits, decoder.whole(piece)));
      }
      const at::Tensor expected = whole.slice(1, done, done + count);
      EXPECT_LE((logits - expected).abs().max().item<double>(), bound) << "behind " << done;
      done += count;
    }
  }
}

}  // namespace
}  // namespace penstock::nn
