#include "penstock/runtime/nn/adapter.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <cmath>

#include "penstock/nn/decoder.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

using testing_support::message_of;
using testing_support::same_bits;

DecoderOptions adapted(const std::string& targets) {
  DecoderOptions options{.layers = 1, .hidden = 16, .intermediate = 24, .head_dim = 4};
  options.adapter = AdapterOptions{.rank = 2, .alpha = 6.0, .targets = targets};
  return options;
}

// The block of a decoder that has one.
std::shared_ptr<Layer> block(const DecoderOptions& options, std::int64_t seed = 1) {
  return build(decoder_layers(options).at(1), seed, 1);
}

TEST(Adapter, OnlyItsMatricesAreTrained) {
  for (const LayerSpec& spec : decoder_layers(adapted("q_proj"))) {
    const auto layer = build(spec, 1, 0);
    for (const auto& each : layer->named_parameters()) {
      EXPECT_EQ(each.value().requires_grad(), is_of_adapter(each.key())) << each.key();
    }
  }
  const auto parameters = block(adapted("q_proj"))->named_parameters();
  EXPECT_EQ(parameters["self_attn.q_proj.lora_A.weight"].sizes(), at::IntArrayRef({2, 16}));
  EXPECT_EQ(parameters["self_attn.q_proj.lora_B.weight"].sizes(), at::IntArrayRef({16, 2}));
  EXPECT_EQ(parameters.find("self_attn.k_proj.lora_A.weight"), nullptr);
}

TEST(Adapter, ChangesNothingAtFirstAndIsDrawnFromTheLayersSeed) {
  const at::Tensor x = at::rand({2, 5, 16});
  DecoderOptions plain = adapted("q_proj");
  plain.adapter.reset();
  EXPECT_TRUE(same_bits(block(plain)->forward(x), block(adapted("q_proj"))->forward(x)));
  const auto drawn = [&](std::int64_t seed) {
    return block(adapted("v_proj"), seed)->named_parameters()["self_attn.v_proj.lora_A.weight"];
  };
  EXPECT_TRUE(same_bits(drawn(1), drawn(1)));
  EXPECT_FALSE(same_bits(drawn(1), drawn(2)));
  EXPECT_LE(drawn(1).abs().max().item<double>(), 1.0 / std::sqrt(16.0));
}

TEST(Adapter, MergedIsTheProductAddedAlphaOverRankTimes) {
  const AdapterOptions options{.rank = 2, .alpha = 6.0};
  const at::Tensor weight = at::rand({5, 4}), a = at::rand({2, 4}), b = at::rand({5, 2});
  const at::Tensor product = 3.0 * at::mm(b, a);
  const double scale = options.scale_of("model.layers.0.mlp.up_proj");
  EXPECT_TRUE(merged(weight, {a, b, {}}, scale, false).allclose(weight + product));
  EXPECT_TRUE(merged(weight.t(), {a, b, {}}, scale, true).allclose((weight + product).t()));
}

TEST(Adapter, MergedWithLengthsHasRowsOfTheseLengths) {
  const at::Tensor weight = at::rand({5, 4}), a = at::rand({2, 4}), b = at::rand({5, 2});
  const at::Tensor lengths = at::rand({5}) + 1;
  const at::Tensor whole = merged(weight, {a, b, lengths}, 0.5, false);
  EXPECT_TRUE(whole.norm(2, 1).allclose(lengths));
  const at::Tensor sum = weight + 0.5 * at::mm(b, a);
  EXPECT_TRUE((whole / whole.norm(2, 1, true)).allclose(sum / sum.norm(2, 1, true)));
}

TEST(Adapter, PatternsAreTheEndsOfNamesFromADotOn) {
  AdapterOptions options{.rank = 4, .alpha = 8.0};
  options.ranks = {{"layers.0.self_attn.q_proj", 2}, {"q_proj", 16}, {"proj", 9}};
  options.alphas = {{"v_.*", 1.0}};
  EXPECT_EQ(options.rank_of("model.layers.0.self_attn.q_proj"), 2);
  EXPECT_EQ(options.rank_of("model.layers.10.self_attn.q_proj"), 16);
  EXPECT_EQ(options.rank_of("model.layers.0.self_attn.v_proj"), 4) << "no part of a word";
  EXPECT_EQ(options.scale_of("model.layers.0.self_attn.v_proj"), 0.25);
  options.is_rank_stabilized = true;
  EXPECT_EQ(options.scale_of("model.layers.3.self_attn.q_proj"), 2.0);
}

TEST(Adapter, WholeModulesAreTrainedUnlessTheyAreTied) {
  DecoderOptions options = adapted("q_proj");
  options.adapter->trained = "embed_tokens|norm";
  for (const LayerSpec& spec : decoder_layers(options)) {
    const auto layer = build(spec, 1, 0);
    const bool is_whole = spec.meta.name == "model.embed_tokens" || spec.meta.name == "model.norm";
    for (const auto& each : layer->named_parameters()) {
      EXPECT_EQ(each.value().requires_grad(), is_whole || is_of_adapter(each.key())) << each.key();
    }
  }
  const auto refusal = [&] { return message_of([&] { decoder_layers(options); }); };
  options.adapter->trained = "embed_tokens|lm_hed";
  EXPECT_NE(refusal().find("\"lm_hed\" is no module of the model; did you mean \"lm_head\""),
            std::string::npos)
      << refusal();
  options.adapter->trained = "q_proj";
  EXPECT_NE(refusal().find("has an adapter"), std::string::npos) << refusal();
  options.adapter->trained = "lm_head";
  options.tie_embeddings = true;
  EXPECT_NE(refusal().find("the head of this model is its embedding"), std::string::npos);
}

TEST(Adapter, TargetsThatAreNoLinearsAreRefusedWithTheirNames) {
  EXPECT_EQ(
      message_of([] { decoder_layers(adapted("proj")); }),
      "model.adapter.targets = \"proj\": matches no linear of the model\n"
      "  note: its linears are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
  EXPECT_NE(message_of([] { decoder_layers(adapted("q_(")); }).find("no regular expression"),
            std::string::npos);
}

TEST(Adapter, LinearsOfGpt2HaveTheirNames) {
  DecoderOptions gpt2{.form = DecoderForm::Gpt2, .mlp = MlpKind::GeluTanh};
  EXPECT_EQ(linear_names(gpt2), (std::vector<std::string>{"c_attn", "c_proj", "c_fc"}));
}

}  // namespace
}  // namespace penstock::nn
