// With invariant sums, decoders whose layers ranks share have the bits of one rank.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/nn/shared.h"
#include "penstock/nn/token_loss.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/column_then_row.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/token_batches.h"

namespace penstock::train {
namespace {

using mesh::Axis;
using testing_support::message_of;
using testing_support::same_bits;

constexpr std::int64_t kTokens = 192;
constexpr std::int64_t kLength = 24;

nn::DecoderOptions options_of_form(const std::string& form) {
  nn::DecoderOptions options{.vocabulary = kTokens,
                             .layers = 3,
                             .hidden = 40,
                             .intermediate = 320,
                             .heads = 8,
                             .kv_heads = 4,
                             .head_dim = 16};
  options.recomputes = form.starts_with("Selective");
  if (form.ends_with("Qwen2")) options.qkv_bias = true;
  if (form.ends_with("Qwen3")) {
    options.tie_embeddings = options.normalizes_queries_and_keys = true;
    options.windows = {std::nullopt, 4, 3};
  }
  if (form == "Documents") options.document_end = 5;
  if (form == "Biases") options.qkv_bias = options.output_bias = options.mlp_bias = true;
  return options;
}

struct Outcome {
  std::vector<StepReport> reports;
  std::map<std::string, at::Tensor> parameters;
  double evaluated = 0.0;
  at::Tensor logits;  // Logits of other samples.
};

// A run: steps [first, end) of all batches.
struct Steps {
  TrainerOptions options;
  nn::DecoderOptions decoder;
  std::size_t first = 0;
  std::size_t end = 10;
  std::string load = {};  // Folders of checkpoints, or none.
  std::string save = {};
};

nn::Values part_of_replica(const nn::Values& values, const Trainer& trainer) {
  const mesh::Group& replicas = trainer.rank_model().groups().other_samples;
  return values[0].chunk(replicas.size())[replicas.here];
}

TrainerOptions adamw() {
  return {.microbatches = 4,
          .partition = partition::Uniform{},
          .optimizer = {.lr = 3e-3, .weight_decay = 0.1},
          .gradient_clipping = 0.5,
          .loss_scale = LossScale::tokens(),
          .sums = GradientSums::Invariant};
}

// pipe x data x tensor
TrainerOptions on(std::int32_t pipe, std::int32_t data, std::int32_t tensor,
                  TrainerOptions options = adamw()) {
  options.mesh = mesh::Shape{.pipe = pipe, .data = data}.with(Axis::Tensor, tensor);
  options.microbatches = 4 / data;
  return options;
}

class InvariantDecoders : public testing::Test {
 protected:
  InvariantDecoders() : others_(at::randint(kTokens, {2, 8}, at::kLong)) {
    for (int i = 0; i < 10; ++i) batches_.push_back(with_masked_targets(8, kLength, kTokens));
  }

  Outcome outcome_of(const Steps& run) const {
    const std::vector<nn::LayerSpec> layers =
        nn::decoder_layers(run.decoder, nn::normal_parameters(0.2));
    Outcome outcome;
    std::mutex mutex;
    comm::run_ranks(
        static_cast<std::int32_t>(run.options.mesh.size()), [&](comm::Communicator& ranks) {
          Trainer trainer(run.options, layers, nn::token_loss(run.decoder.vocabulary), ranks);
          execute::Progress progress;
          const auto checkpoints = [&](const std::string& folder) {
            return saving::Checkpoints(trainer, ranks, progress, {.directory = folder},
                                       [](const std::string&) {});
          };
          if (!run.load.empty()) {
            EXPECT_TRUE(checkpoints(run.load).resume());
          }
          std::vector<StepReport> reports;
          for (std::size_t i = run.first; i < run.end; ++i) {
            reports.push_back(trainer.step(part_of_replica(batches_[i].inputs, trainer),
                                           part_of_replica(batches_[i].targets, trainer)));
          }
          if (!run.save.empty()) checkpoints(run.save).save();
          std::map<std::string, at::Tensor> parameters;
          for (const nn::DecoderParameter& each : nn::decoder_parameters(run.decoder)) {
            parameters[each.name] = trainer.get(each.name);
          }
          const Batch2& last = batches_.back();
          const double evaluated = trainer.evaluate(part_of_replica(last.inputs, trainer),
                                                    part_of_replica(last.targets, trainer));
          const at::Tensor logits = trainer.infer(others_);
          const std::lock_guard lock(mutex);
          if (trainer.rank_model().is_last_stage()) outcome.logits = logits;
          if (ranks.rank().value != 0) return;
          outcome.reports = reports;
          outcome.parameters = parameters;
          outcome.evaluated = evaluated;
        });
    return outcome;
  }

  std::vector<Batch2> batches_;
  at::Tensor others_;
};

class InvariantSharedLayers : public InvariantDecoders,
                              public testing::WithParamInterface<const char*> {
 protected:
  Outcome steps(const TrainerOptions& options, std::size_t count = 10) const {
    return outcome_of({.options = options, .decoder = options_of_form(GetParam()), .end = count});
  }
};

void expect_same(const Outcome& shared, const Outcome& one) {
  ASSERT_EQ(shared.reports.size(), one.reports.size());
  for (std::size_t i = 0; i < one.reports.size(); ++i) {
    EXPECT_EQ(shared.reports[i].loss, one.reports[i].loss) << "step " << i;
    EXPECT_EQ(shared.reports[i].grad_norm, one.reports[i].grad_norm) << "step " << i;
  }
  ASSERT_EQ(shared.parameters.size(), one.parameters.size());
  for (const auto& [name, parameter] : one.parameters) {
    EXPECT_TRUE(same_bits(shared.parameters.at(name), parameter)) << name;
  }
  EXPECT_EQ(shared.evaluated, one.evaluated);
  EXPECT_TRUE(same_bits(shared.logits, one.logits));
}

TEST_P(InvariantSharedLayers, HaveTheBitsOfOneRankAfterAStep) {
  const Outcome one = steps(on(1, 1, 1), 1);
  for (const std::int32_t tensor : {2, 4}) {
    SCOPED_TRACE(str("tensor ", tensor));
    expect_same(steps(on(1, 1, tensor), 1), one);
  }
}

TEST_P(InvariantSharedLayers, HaveTheBitsOfOneRankAfterTenSteps) {
  const Outcome one = steps(on(1, 1, 1));
  for (const auto& [pipe, data, tensor] : {std::tuple{1, 1, 2}, {1, 1, 4}, {2, 1, 2}, {1, 2, 2}}) {
    SCOPED_TRACE(str("pipe ", pipe, " data ", data, " tensor ", tensor));
    expect_same(steps(on(pipe, data, tensor)), one);
  }
}

// ZeRO's stages, from the first on.
constexpr std::array kStages = {ZeroStage::OptimizerStates, ZeroStage::Gradients,
                                ZeroStage::Parameters};

TrainerOptions with_zero(TrainerOptions options, ZeroStage stage) {
  options.zero.stage = stage;
  options.zero.bucket_bytes = 8192;  // Some of a stage's parameters.
  return options;
}

TEST_P(InvariantSharedLayers, HaveThemUnderZero) {
  const Outcome one = steps(on(1, 1, 1));
  for (const ZeroStage stage : kStages) {
    SCOPED_TRACE(str("ZeRO ", static_cast<int>(stage)));
    expect_same(steps(with_zero(on(1, 2, 2), stage)), one);
  }
  for (const std::int32_t tensor : {1, 4}) {
    SCOPED_TRACE(str("ZeRO 3 data 2 tensor ", tensor));
    expect_same(steps(with_zero(on(1, 2, tensor), ZeroStage::Parameters)), one);
  }
  SCOPED_TRACE("ZeRO 3 pipe 2 data 2 tensor 2");
  expect_same(steps(with_zero(on(2, 2, 2), ZeroStage::Parameters)), one);
}

TEST_P(InvariantSharedLayers, HaveThemInSchedulesAndRecomputed) {
  const Outcome one = steps(on(1, 1, 1), 3);
  for (const char* schedule : {"zb_h1", "zbv", "interleaved_1f1b"}) {
    for (const std::int64_t interval : {0, 1}) {
      SCOPED_TRACE(str(schedule, ", recomputed ", interval));
      TrainerOptions options = on(2, 1, 2);
      options.schedule = schedule;
      options.checkpointing.interval = interval;
      expect_same(steps(options, 3), one);
    }
  }
}

TEST_P(InvariantSharedLayers, GoOnWithThemOnOtherMeshes) {
  const Outcome one = steps(on(1, 1, 1));
  const testing_support::TemporaryFolder folder;
  const nn::DecoderOptions decoder = options_of_form(GetParam());
  outcome_of({on(1, 1, 2), decoder, 0, 5, "", folder.path()});
  for (const auto& [pipe, data, tensor] : {std::tuple{1, 1, 1}, {1, 1, 4}, {2, 1, 2}, {1, 2, 2}}) {
    SCOPED_TRACE(str("pipe ", pipe, " data ", data, " tensor ", tensor));
    Outcome resumed = outcome_of({on(pipe, data, tensor), decoder, 5, 10, folder.path(), ""});
    resumed.reports.insert(resumed.reports.begin(), one.reports.begin(), one.reports.begin() + 5);
    expect_same(resumed, one);
  }
}

// Five steps here, five there: on another mesh, in another stage.
TEST_P(InvariantSharedLayers, GoOnWithThemInOtherStagesOfZero) {
  const Outcome one = steps(on(1, 1, 1));
  const nn::DecoderOptions decoder = options_of_form(GetParam());
  const std::array layouts = {on(1, 1, 4), with_zero(on(1, 2, 2), ZeroStage::OptimizerStates),
                              with_zero(on(1, 2, 4), ZeroStage::Gradients),
                              with_zero(on(1, 4, 2), ZeroStage::Parameters)};
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const testing_support::TemporaryFolder folder;
    outcome_of({layouts[from], decoder, 0, 5, "", folder.path()});
    const std::size_t to = (from + 1) % layouts.size();
    SCOPED_TRACE(str("layout ", to, " from ", from));
    Outcome resumed = outcome_of({layouts[to], decoder, 5, 10, folder.path(), ""});
    resumed.reports.insert(resumed.reports.begin(), one.reports.begin(), one.reports.begin() + 5);
    expect_same(resumed, one);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, InvariantSharedLayers,
                         testing::Values("Llama", "Qwen2", "Qwen3", "Documents", "Biases",
                                         "Selective", "SelectiveQwen2"));

// A decoder that 8 ranks could share.
nn::DecoderOptions wide() {
  return {.vocabulary = 128,
          .layers = 1,
          .hidden = 8,
          .intermediate = 128,
          .heads = 8,
          .kv_heads = 8,
          .head_dim = 16};
}

std::string refusal_of(const nn::DecoderOptions& decoder, const TrainerOptions& options,
                       std::int64_t length = kLength) {
  const Batch2 batch = with_masked_targets(8, length, decoder.vocabulary);
  return message_of([&] {
    comm::run_ranks(static_cast<std::int32_t>(options.mesh.size()), [&](comm::Communicator& ranks) {
      Trainer trainer(options, nn::decoder_layers(decoder), nn::token_loss(decoder.vocabulary),
                      ranks);
      trainer.step(batch.inputs, batch.targets);
    });
  });
}

TEST_F(InvariantDecoders, HaveTheBitsOfOneRankOnEightAndWithoutKeepingWhatIsCheap) {
  nn::DecoderOptions decoder = wide();
  decoder.vocabulary = 384;
  const Outcome one = outcome_of({.options = on(1, 1, 1), .decoder = decoder, .end = 2});
  expect_same(outcome_of({.options = on(1, 1, 8), .decoder = decoder, .end = 2}), one);
  decoder.recomputes = true;
  expect_same(outcome_of({.options = on(1, 1, 1), .decoder = decoder, .end = 2}), one);
}

// What a layer's function says; the rank that says it first is named ahead.
testing::AssertionResult says(const std::string& refusal, const std::string& text) {
  if (refusal.ends_with(text)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << refusal;
}

TEST_F(InvariantDecoders, AreRefusedWhereBitsWouldDiffer) {
  EXPECT_EQ(refusal_of(wide(), on(1, 1, 4)), "no error");
  nn::DecoderOptions narrow = wide();
  narrow.kv_heads = 2;
  narrow.intermediate = 96;
  EXPECT_TRUE(
      says(refusal_of(narrow, on(1, 1, 4)),
           "mesh.tensor = 4 with numerics.invariant: bits would depend on the number of ranks: of "
           "2 heads of keys and values each rank needs as many, and one; of 32 features of keys "
           "each rank needs as many, and a multiple of 16; of 96 features of the feed-forward "
           "part each rank needs as many, and a multiple of 16\n  note: sizes that work: 1, 2"));
  nn::DecoderOptions adapted = wide();
  adapted.adapter = nn::AdapterOptions{.rank = 2};
  EXPECT_TRUE(
      says(refusal_of(adapted, on(1, 1, 2)),
           "mesh.tensor = 2 with numerics.invariant: bits would depend on the number of ranks: "
           "adapters are not added in blocks\n  note: sizes that work: 1"));
  nn::DecoderOptions of_three = wide();
  of_three.heads = of_three.kv_heads = 3;
  EXPECT_EQ(refusal_of(of_three, on(1, 1, 3)),
            "mesh.tensor = 3 with numerics.invariant: sums have 8 blocks, which so many ranks "
            "cannot share; sizes that work: 1, 2, 4, 8");
  TrainerOptions bf16 = on(1, 1, 2);
  bf16.precision.type = at::kBFloat16;
  EXPECT_EQ(refusal_of(wide(), bf16),
            "mesh.tensor = 2 with numerics.invariant: summands are rounded to the parameters' type "
            "before ranks add them; take float, or mesh.tensor 1");
  EXPECT_TRUE(says(refusal_of(wide(), on(1, 1, 4), 6),
                   "samples of 6 tokens: with numerics.invariant, 4 ranks share samples of equal "
                   "parts\n  note: give them a multiple of 4 tokens"));
}

// x + W2 relu(W1 x + b1) + b2, whose hidden features are shared.
class Mlp : public nn::LayerInPieces {
 public:
  Mlp(const nn::Making& making, std::int64_t width, std::int64_t hidden) : LayerInPieces(3) {
    const nn::SharedLinearOptions in{.in = width, .out = hidden}, out{.in = hidden, .out = width};
    in_ = register_module("in", std::make_shared<nn::ColumnLinear>(making, in));
    out_ = register_module("out", std::make_shared<nn::RowLinear>(making, out));
  }
  nn::Values forward_piece(std::size_t piece, const nn::Values& x) override {
    if (piece == 0) return {x[0], x[0]};
    if (piece == 1) return {x[0], out_->summand(in_->forward(x[1]).relu())};
    return x[0] + out_->add_bias(x[1]);
  }

 private:
  std::shared_ptr<nn::ColumnLinear> in_;
  std::shared_ptr<nn::RowLinear> out_;
};

std::vector<nn::LayerSpec> mlps(std::int64_t hidden, exchange::Sums sums) {
  const exchange::Pieces pieces = testing_support::column_then_row();
  std::vector<nn::LayerSpec> layers = {nn::layer<torch::nn::Linear>("first", 5, 24)};
  for (int i = 0; i < 2; ++i) {
    layers.push_back(nn::layer_in_pieces<Mlp>(str("mlp ", i), pieces, std::int64_t{24}, hidden));
    layers.back().meta.sums = sums;
  }
  layers.push_back(nn::layer<torch::nn::Linear>("last", 24, 3));
  return layers;
}

struct OwnOutcome {
  std::vector<std::pair<double, double>> steps;  // Losses and norms.
  std::map<std::string, at::Tensor> parameters;
};

OwnOutcome own_outcome(const TrainerOptions& options, const std::vector<nn::LayerSpec>& layers) {
  OwnOutcome outcome;
  std::mutex mutex;
  const at::Tensor x = at::arange(80, at::kFloat).view({16, 5}).sin();
  const at::Tensor target = x.cos().narrow(1, 0, 3);
  comm::run_ranks(static_cast<std::int32_t>(options.mesh.size()), [&](comm::Communicator& ranks) {
    Trainer trainer(options, layers, torch::mse_loss, ranks);
    OwnOutcome mine;
    for (int step = 0; step < 5; ++step) {
      const StepReport report =
          trainer.step(part_of_replica({x}, trainer), part_of_replica({target}, trainer));
      mine.steps.emplace_back(report.loss, report.grad_norm);
    }
    for (const char* name : {"first.weight", "mlp 0.in.weight", "mlp 0.in.bias", "mlp 0.out.weight",
                             "mlp 0.out.bias", "mlp 1.in.weight", "last.bias"}) {
      mine.parameters[name] = trainer.get(name);
    }
    const std::lock_guard lock(mutex);
    if (ranks.rank().value == 0) outcome = mine;
  });
  return outcome;
}

TrainerOptions of_samples(TrainerOptions options) {
  options.loss_scale = LossScale::samples();
  return options;
}

TEST(OwnInvariantLayers, HaveTheBitsOfOneRank) {
  const auto layers = mlps(/*hidden=*/64, exchange::Sums::InBlocks);
  const OwnOutcome one = own_outcome(of_samples(on(1, 1, 1)), layers);
  for (const auto& [pipe, data, tensor] : {std::tuple{1, 1, 2}, {1, 1, 4}, {2, 1, 2}, {1, 2, 2}}) {
    SCOPED_TRACE(str("pipe ", pipe, " data ", data, " tensor ", tensor));
    const OwnOutcome shared = own_outcome(of_samples(on(pipe, data, tensor)), layers);
    EXPECT_EQ(shared.steps, one.steps);
    for (const auto& [name, parameter] : one.parameters) {
      EXPECT_TRUE(same_bits(shared.parameters.at(name), parameter)) << name;
    }
  }
}

TEST(OwnInvariantLayers, AreRefusedWhereTheySayNothingOrAreNarrow) {
  const auto refusal = [](std::int64_t hidden, exchange::Sums sums) {
    return message_of([&] { own_outcome(of_samples(on(1, 1, 4)), mlps(hidden, sums)); });
  };
  EXPECT_EQ(
      refusal(64, exchange::Sums::AsTheyCome),
      "mesh.tensor = 4 with numerics.invariant: layer \"mlp 0\", and 1 other layer: sums would "
      "depend on the number of ranks\n"
      "  note: decoders of Llama's form add in blocks, so that they do not; a layer of your own "
      "says it by LayerMeta::sums");
  EXPECT_TRUE(
      says(refusal(32, exchange::Sums::InBlocks),
           "mesh.tensor = 4 with numerics.invariant: ranks cannot share 32 outputs of a linear, "
           "each as many and a multiple of 16\n  note: sizes that work: 1, 2"));
}

}  // namespace
}  // namespace penstock::train
