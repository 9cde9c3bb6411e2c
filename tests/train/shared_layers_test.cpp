// Decoders and GPTs whose layers ranks share train as one process trains them.
//
// Sums over ranks add in another order than one process.  Bounds are those of float: a gradient is
// a sum of some hundred products, each rounded to 2^-24, so that 1e-5 of its largest element is
// more than ten times what is seen; the loss is a mean of logarithms near 4.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/nn/gpt.h"
#include "penstock/nn/token_loss.h"
#include "penstock/runtime/nn/model.h"
#include "tests/support/decoder_families.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/support/sweep.h"
#include "tests/train/token_batches.h"

namespace penstock::train {
namespace {

using mesh::Axis;
using testing_support::same_bits;

constexpr std::int64_t kTokens = 41;  // No multiple of 2 or 4.
constexpr std::int64_t kLength = 7;

nn::DecoderOptions options_of_form(const std::string& form) {
  nn::DecoderOptions options{.vocabulary = kTokens,
                             .layers = 3,
                             .hidden = 16,
                             .intermediate = 22,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 6};
  if (form.starts_with("Gpt2")) {
    options.form = nn::DecoderForm::Gpt2;
    options.kv_heads = options.heads = 5;  // No multiple of 2 or 4, as 9 positions are none.
    options.norm = nn::NormKind::Layer;
    options.mlp = nn::MlpKind::GeluTanh;
    options.rotary.reset();
    options.positions = 9;
    options.qkv_bias = options.output_bias = options.mlp_bias = options.tie_embeddings = true;
    if (form.ends_with("Documents")) options.document_end = 5;
  }
  for (const char* const family : testing_support::kDecoderFamilies) {
    if (form.starts_with(family)) options = testing_support::of_family(family, options);
  }
  options.recomputes = form.starts_with("Selective");
  if (form.ends_with("Qwen")) {
    options.qkv_bias = options.tie_embeddings = options.normalizes_queries_and_keys = true;
    options.windows = {std::nullopt, 4, 3};
  }
  if (form == "Documents" || form == "Olmo2Documents") options.document_end = 5;
  if (form == "Biases") options.qkv_bias = options.output_bias = options.mlp_bias = true;
  if (form.ends_with("Adapters")) {
    const char* const of_gpt2 = "c_attn|c_fc|c_proj";
    const char* const of_llama = "q_proj|k_proj|o_proj|gate_proj|down_proj";
    const char* const targets = form.starts_with("Gpt2")   ? of_gpt2
                                : form.starts_with("Phi3") ? "qkv_proj|o_proj|gate_up_proj"
                                                           : of_llama;
    options.adapter = nn::AdapterOptions{
        .rank = 3, .targets = targets, .dropout = form == "Olmo2Adapters" ? 0.25 : 0.0};
    options.adapter->alpha = 3.0;
  }
  return options;
}

// Models of gpt.h: with 5 heads of 4 features.
nn::GptOptions own_gpt(const std::string& form) {
  return {.layers = 3,
          .hidden = 20,
          .heads = 5,
          .sequence_length = 9,
          .vocabulary = kTokens,
          .tie_embeddings = form == "OwnTied",
          .dropout = form == "OwnTied" ? 0.0 : 0.25};
}

// First values that are not 0, so that adapters have gradients everywhere.
nn::FillParameter filled() { return nn::normal_parameters(0.2); }

std::vector<nn::LayerSpec> layers_of_form(const std::string& form) {
  if (form == "OwnMlp") return nn::byte_mlp_layers(own_gpt(form));
  if (form.starts_with("Own")) return nn::gpt_layers(own_gpt(form));
  const nn::DecoderOptions options = options_of_form(form);
  return nn::decoder_layers(options, nn::normal_parameters(0.2, options.norm_offset), filled());
}

// Parameters that are tied have their first names.
std::set<std::string> names_of(const std::vector<nn::LayerSpec>& layers) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto built = nn::build_layer(layers, 1, static_cast<std::int64_t>(i));
    for (const nn::ModelParameter& each : nn::parameters_of(built, layers[i].meta.name)) {
      names.insert(each.name);
    }
  }
  return names;
}

struct Run {
  TrainerOptions options;
  std::string form;
};

struct Outcome {
  std::vector<StepReport> reports;
  std::map<std::string, at::Tensor> changes;  // Differences that steps have made to parameters.
  double evaluated = 0.0;
  at::Tensor logits;  // Logits of other samples.
};

std::vector<Batch2> batches_of(int count) {
  std::vector<Batch2> all;
  for (int i = 0; i < count; ++i) all.push_back(with_masked_targets(8, kLength, kTokens));
  return all;
}

nn::Values part_of_replica(const nn::Values& values, const Trainer& trainer) {
  const mesh::Group& replicas = trainer.rank_model().groups().other_samples;
  return values[0].chunk(replicas.size())[replicas.here];
}

Outcome outcome_of(const Run& run, const std::vector<Batch2>& batches, const at::Tensor& others) {
  const std::vector<nn::LayerSpec> layers = layers_of_form(run.form);
  const std::set<std::string> names = names_of(layers);
  Outcome outcome;
  std::mutex mutex;
  std::map<std::string, at::Tensor> whole;
  comm::run_ranks(
      static_cast<std::int32_t>(run.options.mesh.size()), [&](comm::Communicator& communicator) {
        Trainer trainer(run.options, layers, nn::token_loss(kTokens), communicator);
        std::vector<StepReport> reports;
        const auto parameters = [&] {
          std::map<std::string, at::Tensor> all;
          for (const std::string& name : names) all[name] = trainer.get(name);
          return all;
        };
        const auto before = parameters();
        for (const Batch2& batch : batches) {
          reports.push_back(trainer.step(part_of_replica(batch.inputs, trainer),
                                         part_of_replica(batch.targets, trainer)));
        }
        const Batch2& last = batches.back();
        const double evaluated = trainer.evaluate(part_of_replica(last.inputs, trainer),
                                                  part_of_replica(last.targets, trainer));
        const at::Tensor logits = trainer.infer(others);
        auto changes = parameters();
        for (auto& [name, tensor] : changes) tensor = before.at(name) - tensor;
        const auto all = trainer.rank_model().whole_parameters();
        const std::lock_guard lock(mutex);
        for (const stage::Stage& stage : trainer.rank_model().stages()) {
          for (const stage::NamedParameter& each : stage.parameters()) {
            const std::string key = trainer.rank_model().sharing().key_of(each.name);
            const auto [other, is_new] = whole.emplace(key, each.tensor.detach().clone());
            EXPECT_TRUE(is_new || same_bits(other->second, each.tensor)) << key;
          }
        }
        if (trainer.rank_model().is_last_stage()) {
          EXPECT_TRUE(!outcome.logits.defined() || same_bits(outcome.logits, logits));
          outcome.logits = logits;
        }
        if (communicator.rank().value == 0) {
          outcome.reports = reports;
          outcome.changes = changes;
          outcome.evaluated = evaluated;
        }
      });
  return outcome;
}

TrainerOptions base() {
  return {.microbatches = 4,
          .partition = partition::Uniform{},
          .optimizer = {.type = config::OptimizerType::Sgd, .lr = 1.0},
          .loss_scale = LossScale::tokens()};
}

// pipe x data x tensor
TrainerOptions on(std::int32_t pipe, std::int32_t data, std::int32_t tensor,
                  TrainerOptions options) {
  options.mesh = mesh::Shape{.pipe = pipe, .data = data}.with(Axis::Tensor, tensor);
  options.microbatches = 4 / data;
  return options;
}

// What a step of SGD at a rate of 1 takes away are the gradients.
void expect_same_gradients(const Outcome& shared, const Outcome& one) {
  ASSERT_EQ(shared.changes.size(), one.changes.size());
  double squares = 0.0;  // Of all differences.
  for (const auto& [name, gradient] : one.changes) {
    const at::Tensor difference = gradient - shared.changes.at(name);
    const double largest = gradient.abs().max().item<double>();
    // A difference of weights near 1 is a multiple of 2^-23.
    EXPECT_LE(difference.abs().max().item<double>(), 1e-5 * largest + std::exp2(-23)) << name;
    squares += difference.square().sum(at::kDouble).item<double>();
  }
  EXPECT_NEAR(shared.reports[0].loss, one.reports[0].loss, 1e-5);
  // Norms are no further apart than the gradients are, and 1e-6 is for what rounds norms.
  EXPECT_NEAR(shared.reports[0].grad_norm, one.reports[0].grad_norm,
              std::sqrt(squares) + 1e-6 * one.reports[0].grad_norm);
  EXPECT_NEAR(shared.evaluated, one.evaluated, 1e-4);
  EXPECT_LE((shared.logits - one.logits).abs().max().item<double>(), 1e-4);
}

constexpr auto kForms = std::to_array<const char*>(
    {"Llama",         "Documents",      "Qwen",          "Biases",       "Adapters", "Selective",
     "SelectiveQwen", "Gpt2",           "Gpt2Documents", "Gpt2Adapters", "OwnTied",  "OwnDropout",
     "OwnMlp",        "Phi3",           "Granite",       "Olmo2",        "SmolLM3",  "Gemma2",
     "Gemma3",        "Olmo2Documents", "Phi3Adapters",  "Olmo2Adapters"});

// In the quick tier each form has some of the layouts, and all forms together have each.
class SharedLayers : public testing::TestWithParam<const char*> {
 protected:
  SharedLayers() : batches_(batches_of(10)), others_(at::randint(kTokens, {2, 5}, at::kLong)) {}
  Outcome one_step(const TrainerOptions& options) const {
    return outcome_of({options, GetParam()}, {batches_.front()}, others_);
  }
  static bool has_turn(int layout, int layouts) {
    const auto form = std::ranges::find(kForms, std::string_view(GetParam())) - kForms.begin();
    return form % layouts == layout || testing_support::runs_whole_sweeps();
  }
  std::vector<Batch2> batches_;
  at::Tensor others_;
};

TEST_P(SharedLayers, HaveTheGradientsOfOneProcess) {
  const Outcome one = one_step(on(1, 1, 1, base()));
  for (const auto& [pipe, data, tensor] :
       {std::tuple{1, 1, 2}, {1, 1, 4}, {2, 1, 2}, {1, 2, 2}, {2, 1, 4}, {2, 2, 2}}) {
    if (pipe * data * tensor == 8 && !has_turn(pipe == data ? 0 : 1, 4)) continue;
    SCOPED_TRACE(str("pipe ", pipe, " data ", data, " tensor ", tensor));
    expect_same_gradients(one_step(on(pipe, data, tensor, base())), one);
  }
}

TEST_P(SharedLayers, HaveThemInEveryScheduleAndZeroStageAndRecomputed) {
  const Outcome one = one_step(on(1, 1, 1, base()));
  int number = 0;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zbv", "zb_h1"}) {
    for (const int stage : {number % 4, (number + 2) % 4}) {
      if (!has_turn(number, 5)) continue;
      SCOPED_TRACE(str(schedule, " ZeRO ", stage));
      TrainerOptions options = on(2, stage == 0 ? 1 : 2, 2, base());
      options.schedule = schedule;
      options.zero.stage = static_cast<ZeroStage>(stage);
      options.zero.bucket_bytes = 2048;
      options.checkpointing.interval = number % 2;
      expect_same_gradients(one_step(options), one);
    }
    ++number;
  }
}

TEST_P(SharedLayers, TrainTenStepsAsOneProcess) {
  TrainerOptions adamw = base();
  adamw.optimizer = {.lr = 3e-3, .weight_decay = 0.1};
  adamw.gradient_clipping = 0.5;
  const Outcome one = outcome_of({on(1, 1, 1, adamw), GetParam()}, batches_, others_);
  for (const std::int32_t pipe : {1, 2}) {
    if (!has_turn(pipe - 1, 2)) continue;
    const Outcome shared = outcome_of({on(pipe, 2, 2, adamw), GetParam()}, batches_, others_);
    for (std::size_t i = 0; i < one.reports.size(); ++i) {
      EXPECT_NEAR(shared.reports[i].loss, one.reports[i].loss, 1e-5) << i;
    }
    EXPECT_LE((shared.logits - one.logits).abs().max().item<double>(), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, SharedLayers, testing::ValuesIn(kForms));

}  // namespace
}  // namespace penstock::train
