// Decoders of every form train to the same bits in every layout.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "penstock/nn/decoder.h"
#include "penstock/nn/token_loss.h"
#include "tests/support/decoder_families.h"
#include "tests/train/token_batches.h"
#include "tests/train/trained.h"

namespace penstock::train {
namespace {

constexpr std::int64_t kVocabulary = 40;

Batch2 with_masked_targets(std::int64_t samples, std::int64_t length) {
  return train::with_masked_targets(samples, length, kVocabulary);
}

nn::DecoderOptions options_of_form(const std::string& form) {
  nn::DecoderOptions options{.vocabulary = kVocabulary,
                             .layers = 5,
                             .hidden = 16,
                             .intermediate = 24,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 4};
  for (const char* const family : testing_support::kDecoderFamilies) {
    if (form == family) return testing_support::of_family(family, options);
  }
  options.recomputes = form.starts_with("Recomputed");
  if (form == "Qwen" || form == "RecomputedQwen") {
    options.qkv_bias = options.tie_embeddings = options.normalizes_queries_and_keys = true;
    options.windows = {std::nullopt, 4, std::nullopt, 4, 4};
  }
  if (form.ends_with("Wide")) {  // Products of the feed-forward part are worth oneDNN's call.
    options.layers = 2;
    options.hidden = 512;
    options.intermediate = 1100;
    options.head_dim = 128;
  }
  if (form == "Documents") options.document_end = 7;
  if (form == "Gpt2") {
    options.form = nn::DecoderForm::Gpt2;
    options.kv_heads = options.heads;
    options.norm = nn::NormKind::Layer;
    options.mlp = nn::MlpKind::GeluTanh;
    options.rotary.reset();
    options.qkv_bias = options.output_bias = options.mlp_bias = options.tie_embeddings = true;
  }
  return options;
}

class Decoders : public testing::TestWithParam<const char*> {
 protected:
  Kind kind() const {
    return {GetParam(), nn::decoder_layers(options_of_form(GetParam())), nn::mean_token_loss,
            with_masked_targets};
  }
  std::vector<Batch2> batches() const {
    std::vector<Batch2> all;
    for (int i = 0; i < 4; ++i) all.push_back(with_masked_targets(8, kSequence));
    return all;
  }
  static TrainerOptions options(const char* schedule, std::int32_t pipe, std::int32_t data) {
    return {.mesh = {.pipe = pipe, .data = data},
            .schedule = schedule,
            .microbatches = 4 / data,
            .partition = partition::Uniform{},
            .optimizer = {.lr = 3e-3, .weight_decay = 0.1},
            .gradient_clipping = 0.5,
            .loss_scale = LossScale::tokens()};
  }
};

TEST_P(Decoders, HaveTheBitsOfOneProcessInEveryPipeline) {
  const auto data = batches();
  const Trained one = train(options("gpipe", 1, 1), kind(), data);
  EXPECT_NE(one.reports.front().loss, one.reports.back().loss);
  for (const char* schedule : {"1f1b", "interleaved_1f1b", "zbv", "zb_h1"}) {
    SCOPED_TRACE(schedule);
    EXPECT_TRUE(same(train(options(schedule, 2, 1), kind(), data), one));
  }
  TrainerOptions again = options("1f1b", 2, 1);
  again.checkpointing.interval = 1;
  EXPECT_TRUE(same(train(again, kind(), data), one));
}

TEST_P(Decoders, HaveTheBitsOfWholeReplicasInEveryZeroStage) {
  const auto data = batches();
  const Trained whole = train(options("zbv", 2, 2), kind(), data);
  for (const ZeroStage stage :
       {ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters}) {
    SCOPED_TRACE(static_cast<int>(stage));
    TrainerOptions cut = options("zbv", 2, 2);
    cut.zero.stage = stage;
    cut.zero.bucket_bytes = 4096;
    cut.zero.limits = {.budget_bytes = 8192, .prefetch_bytes = 2048};
    EXPECT_TRUE(same(train(cut, kind(), data), whole));
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Decoders,
                         testing::Values("Llama", "Documents", "Qwen", "Gpt2", "Wide", "Recomputed",
                                         "RecomputedQwen", "RecomputedWide"));
INSTANTIATE_TEST_SUITE_P(Families, Decoders, testing::ValuesIn(testing_support::kDecoderFamilies));

// What is computed again is the same, and gradients of a norm's output are added in another order:
// a rounding each, of 2^-24, in a dozen sums a layer.
TEST(RecomputedDecoder, TrainsAsOneThatKeepsAll) {
  const std::vector<Batch2> batches = {with_masked_targets(8, kSequence)};
  for (const std::string form : {"Llama", "Qwen", "Phi3", "Olmo2", "Gemma3"}) {
    std::vector<std::map<std::string, at::Tensor>> moved;  // By SGD at a rate of 1: the gradients.
    std::vector<double> losses;
    for (const std::string prefix : {"", "Recomputed"}) {
      nn::DecoderOptions decoder = options_of_form(form);
      decoder.recomputes = !prefix.empty();
      const Kind kind{"", nn::decoder_layers(decoder), nn::mean_token_loss, with_masked_targets};
      TrainerOptions options{.microbatches = 2,
                             .optimizer = {.type = config::OptimizerType::Sgd, .lr = 1.0},
                             .loss_scale = LossScale::tokens()};
      const Trained trained = train(options, kind, batches);
      losses.push_back(trained.reports.front().loss);
      moved.push_back(trained.parameters);
    }
    EXPECT_EQ(losses[0], losses[1]) << form;
    for (const auto& [name, tensor] : moved[0]) {
      const double error = (tensor - moved[1].at(name)).abs().max().item<double>();
      EXPECT_LT(error, 1e-6) << form << " " << name;
    }
  }
}

}  // namespace
}  // namespace penstock::train
