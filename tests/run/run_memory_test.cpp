// The memory that is told of a run against what torch's allocator gives out in it.
#include "penstock/runtime/run/run_memory.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/nn/decoder.h"
#include "penstock/nn/gpt.h"
#include "penstock/nn/token_loss.h"
#include "penstock/runtime/probe/allocation_meter.h"
#include "penstock/runtime/train/training_state.h"
#include "tests/train/frozen.h"

namespace penstock::run {
namespace {

using train::frozen;
using train::Trainer;
using train::TrainerOptions;
using train::ZeroStage;

constexpr std::int64_t kTokens = 32;        // Of a sample.
constexpr std::int64_t kVocabulary = 3000;  // Of a decoder.
constexpr std::int32_t kSteps = 3;
constexpr offload::Place kFile = offload::Place::File;
constexpr mesh::Axis kTensor = mesh::Axis::Tensor;

struct Case {
  const char* model = "gpt";
  const char* schedule = "1f1b";
  std::int32_t pipe = 1;
  std::int32_t data = 1;
  std::int32_t zero = 0;
  std::int64_t interval = 0;
  std::int32_t microbatches = 4;
  std::int64_t samples = 4;  // Of a microbatch.
  std::int64_t hidden = 64;
  bool tied = false;
  bool adapted = false;    // A decoder: low-rank adapters alone are trained.
  bool documents = false;  // A decoder: attention stays within documents.
  config::OptimizerType optimizer = config::OptimizerType::AdamW;
  offload::Place states = offload::Place::Device;
  offload::Place parameters = offload::Place::Device;
  at::ScalarType type = at::kFloat;
  std::optional<at::ScalarType> sums = {};
  std::int64_t persistent = 0;  // Elements.
  std::int32_t tensor = 1;      // A decoder.
};

std::string name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return str(
      c.model, "_", c.schedule, "_", c.pipe, "x", c.data, c.tensor > 1 ? str("x", c.tensor) : "",
      "_zero", c.zero, c.interval > 0 ? str("_recomputed", c.interval) : "", c.tied ? "_tied" : "",
      c.adapted ? "_adapted" : "", c.documents ? "_documents" : "",
      c.optimizer == config::OptimizerType::Sgd ? "_sgd" : "", c.hidden > 64 ? "_wide" : "",
      c.states == kFile ? "_in_file" : "", c.parameters == kFile ? "_paged_from_file" : "",
      c.type == at::kFloat ? "" : str("_", c10::toString(c.type)), c.sums ? "_summed_apart" : "",
      c.persistent > 0 ? str("_persistent", c.persistent) : "", "_m", c.microbatches);
}

bool is_decoder(const Case& c) { return std::string(c.model) == "decoder"; }

// A decoder has logits that are larger than all else.
nn::Loss loss_of(const Case& c) {
  if (c.tensor > 1) return nn::token_loss(kVocabulary);
  return is_decoder(c) ? nn::Loss(nn::mean_token_loss).of_any_type() : nn::Loss(nn::next_byte_loss);
}

std::vector<nn::LayerSpec> model_of(const Case& c) {
  if (is_decoder(c)) {
    nn::DecoderOptions options{.vocabulary = kVocabulary,
                               .layers = 6,
                               .hidden = c.hidden,
                               .intermediate = 2 * c.hidden,
                               .kv_heads = 2,
                               .head_dim = c.hidden / 4,
                               .tie_embeddings = c.tied};
    if (c.adapted) options.adapter = nn::AdapterOptions();
    if (c.documents) options.document_end = 0;
    return nn::decoder_layers(options);
  }
  const nn::GptOptions options{.layers = 6,
                               .hidden = c.hidden,
                               .heads = 4,
                               .sequence_length = kTokens,
                               .tie_embeddings = c.tied};
  if (std::string(c.model) == "mlp") return nn::byte_mlp_layers(options);
  std::vector<nn::LayerSpec> layers = nn::gpt_layers(options);
  if (std::string(c.model) == "frozen") {  // But its first blocks and the head are trained.
    layers.front() = frozen(std::move(layers.front()));
    for (std::size_t i = 3; i + 1 < layers.size(); ++i) layers[i] = frozen(std::move(layers[i]));
  }
  return layers;
}

TrainerOptions options_of(const Case& c) {
  const std::string folder = std::filesystem::temp_directory_path();
  return {.mesh = mesh::Shape{.pipe = c.pipe, .data = c.data}.with(kTensor, c.tensor),
          .schedule = c.schedule,
          .microbatches = c.microbatches,
          .optimizer = {.type = c.optimizer, .momentum = 0.0},
          .gradient_clipping = 1.0,
          .precision = {.type = c.type, .sums = c.sums},
          .zero = {.stage = static_cast<ZeroStage>(c.zero),
                   .bucket_bytes = 64 << 10,
                   .persistence = {.elements = c.persistent}},
          .offload = {.states = {c.states, folder}, .parameters = {c.parameters, folder}},
          .checkpointing = {.interval = c.interval}};
}

at::Tensor tokens(std::int64_t samples) { return at::ones({samples, kTokens}, at::kLong); }

struct Measured {
  std::int64_t peak = 0;
  std::int64_t between_steps = 0;
  std::int64_t file = 0;
  std::int64_t saved = 0;  // Of the replica that saves most of a checkpoint.
};

std::int64_t saved_bytes(Trainer& trainer) {
  std::int64_t bytes = 0;
  for (const train::StatePiece& piece : train::state_of(trainer)) {
    if (piece.is_saved_here) bytes += static_cast<std::int64_t>(piece.values.nbytes());
  }
  return bytes;
}

// Of each rank of the first replica, by rank of the pipe axis: the first of those that share
// layers.
std::vector<Measured> measure(const Case& c) {
  std::vector<Measured> measured(static_cast<std::size_t>(c.pipe));
  std::mutex mutex;
  comm::run_ranks(c.pipe * c.data * c.tensor, [&](comm::Communicator& communicator) {
    const probe::AllocationMeter meter;
    Trainer trainer(options_of(c), model_of(c), loss_of(c), communicator);
    for (std::int32_t step = 0; step < kSteps; ++step) {
      const at::Tensor inputs = tokens(c.samples * c.microbatches);
      const at::Tensor targets = tokens(c.samples * c.microbatches);
      trainer.step(inputs, targets);
    }
    const std::int64_t peak = meter.peak(), between_steps = meter.now();
    const mesh::Coordinate here = trainer.layout().mesh.coordinate(communicator.rank());
    const std::int64_t saved = saved_bytes(trainer);
    const std::lock_guard lock(mutex);
    Measured& rank = measured[static_cast<std::size_t>(here.pipe)];
    rank.saved = std::max(rank.saved, saved);
    if (here.data > 0 || here[kTensor] > 0) return;
    rank.peak = peak;
    rank.between_steps = between_steps;
    rank.file = trainer.offloaded_bytes();
  });
  return measured;
}

class RunMemory : public testing::TestWithParam<Case> {};

TEST_P(RunMemory, TellsWhatEachRankHasAtItsPeakAndBetweenSteps) {
  const Case& c = GetParam();
  const std::vector<Measured> measured = measure(c);
  const at::Tensor microbatch = tokens(c.samples);
  const TrainingInputs inputs{
      .inputs = microbatch,
      .targets = microbatch,
      .batch_bytes = 2 * c.microbatches * static_cast<std::int64_t>(microbatch.nbytes())};
  const std::vector<PipeRank> told =
      run_memory(options_of(c), model_of(c), loss_of(c), inputs, memory::Copies::InHostMemory);
  ASSERT_EQ(told.size(), measured.size());
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    const auto of_peak = static_cast<double>(told[rank].memory.peak.total()) /
                         static_cast<double>(measured[rank].peak);
    const auto of_rest = static_cast<double>(told[rank].memory.between_steps.total()) /
                         static_cast<double>(measured[rank].between_steps);
    RecordProperty(str("peak", rank), str(of_peak));
    RecordProperty(str("rest", rank), str(of_rest));
    EXPECT_GE(of_peak, 0.98) << "rank " << rank << ", told at " << told[rank].memory.at;
    EXPECT_LE(of_peak, 1.05) << "rank " << rank << ", told at " << told[rank].memory.at;
    EXPECT_NEAR(of_rest, 1, 0.02) << "rank " << rank;
    EXPECT_EQ(told[rank].file_bytes, measured[rank].file) << "rank " << rank;
    const auto of_saved =
        static_cast<double>(told[rank].host_copy_bytes) / static_cast<double>(measured[rank].saved);
    RecordProperty(str("saved", rank), str(of_saved));
    EXPECT_NEAR(of_saved, 1, 0.02) << "rank " << rank;
  }
}

constexpr auto kSgd = config::OptimizerType::Sgd;
constexpr auto kBf16 = at::kBFloat16;

INSTANTIATE_TEST_SUITE_P(
    Runs, RunMemory,
    testing::Values(
        Case{}, Case{.model = "mlp"}, Case{.optimizer = kSgd}, Case{.microbatches = 1},
        Case{.interval = 1}, Case{.interval = 2}, Case{.interval = 8}, Case{.states = kFile},
        Case{.tied = true}, Case{.schedule = "gpipe", .pipe = 2}, Case{.pipe = 2},
        Case{.schedule = "interleaved_1f1b", .pipe = 2}, Case{.schedule = "zb_h1", .pipe = 2},
        Case{.schedule = "zbv", .pipe = 2}, Case{.model = "mlp", .schedule = "zbv", .pipe = 2},
        Case{.pipe = 2, .interval = 1}, Case{.pipe = 2, .interval = 8},
        Case{.schedule = "interleaved_1f1b", .pipe = 2, .interval = 2},
        Case{.pipe = 2, .tied = true}, Case{.data = 2}, Case{.pipe = 2, .data = 2},
        Case{.schedule = "zbv", .pipe = 2, .data = 2}, Case{.data = 2, .zero = 1},
        Case{.pipe = 2, .data = 2, .zero = 1}, Case{.data = 2, .zero = 2},
        Case{.pipe = 2, .data = 2, .zero = 2}, Case{.samples = 1, .hidden = 256},
        Case{.data = 2, .samples = 1, .hidden = 256}, Case{.data = 4, .samples = 1, .hidden = 256},
        Case{.data = 2, .zero = 1, .samples = 1, .hidden = 256},
        Case{.data = 2, .zero = 2, .samples = 1, .hidden = 256},
        Case{.data = 4, .zero = 2, .samples = 1, .hidden = 256},
        Case{.data = 2, .zero = 2, .states = kFile}, Case{.zero = 3, .parameters = kFile},
        Case{.zero = 3, .tied = true, .parameters = kFile},
        Case{.data = 2, .zero = 3, .parameters = kFile},
        Case{.pipe = 2, .data = 2, .zero = 3, .states = kFile, .parameters = kFile},
        Case{.data = 2, .zero = 3}, Case{.pipe = 2, .data = 2, .zero = 3}, Case{.model = "frozen"},
        Case{.model = "frozen", .data = 2, .zero = 2},
        Case{.model = "frozen", .data = 2, .zero = 3},
        Case{.model = "frozen", .pipe = 2, .data = 2, .zero = 3},
        Case{.model = "frozen", .data = 2, .zero = 3, .parameters = kFile},
        Case{.data = 2, .zero = 3, .samples = 1, .hidden = 256},
        Case{.data = 4, .zero = 3, .samples = 1, .hidden = 256}),
    name);

// Their loss is over a vocabulary that makes logits larger than all else.
INSTANTIATE_TEST_SUITE_P(
    Decoders, RunMemory,
    testing::Values(
        Case{.model = "decoder"}, Case{.model = "decoder", .pipe = 2, .data = 2, .zero = 2},
        Case{.model = "decoder", .pipe = 2, .tied = true},
        Case{.model = "decoder", .adapted = true},
        Case{.model = "decoder", .pipe = 2, .adapted = true},
        Case{.model = "decoder", .pipe = 2, .data = 2, .zero = 3, .tied = true, .adapted = true},
        Case{.model = "decoder", .documents = true},
        Case{.model = "decoder", .pipe = 2, .interval = 1, .documents = true},
        Case{.model = "decoder", .type = at::kBFloat16}),
    name);

// Ranks that share layers.  Keys and values are of two heads, so that of four ranks two have each.
INSTANTIATE_TEST_SUITE_P(
    Shared, RunMemory,
    testing::Values(
        Case{.model = "decoder", .tensor = 2}, Case{.model = "decoder", .tensor = 4},
        Case{.model = "decoder", .pipe = 2, .tied = true, .tensor = 2},
        Case{.model = "decoder", .interval = 1, .tensor = 2},
        Case{.model = "decoder", .pipe = 2, .interval = 8, .tensor = 2},
        Case{.model = "decoder", .schedule = "zbv", .pipe = 2, .tensor = 2},
        Case{.model = "decoder", .data = 2, .zero = 1, .tensor = 2},
        Case{.model = "decoder", .pipe = 2, .data = 2, .zero = 2, .tensor = 2},
        Case{.model = "decoder", .data = 2, .zero = 3, .tensor = 2},
        Case{.model = "decoder", .adapted = true, .tensor = 2},
        Case{.model = "decoder", .documents = true, .tensor = 2},
        Case{.model = "decoder", .type = kBf16, .tensor = 2},
        Case{.model = "decoder", .samples = 1, .hidden = 256, .type = kBf16, .tensor = 4}),
    name);

// With parameters that stay whole: biases and norms, then most of a block.
INSTANTIATE_TEST_SUITE_P(
    Persistence, RunMemory,
    testing::Values(Case{.data = 2, .zero = 3, .persistent = 256},
                    Case{.data = 2, .zero = 3, .persistent = 12288},
                    Case{.pipe = 2, .data = 2, .zero = 3, .persistent = 256},
                    Case{.model = "frozen", .data = 2, .zero = 3, .persistent = 12288},
                    Case{.data = 2, .zero = 3, .samples = 1, .hidden = 256, .persistent = 1024},
                    Case{.data = 2, .zero = 3, .parameters = kFile, .persistent = 256},
                    Case{.data = 2, .zero = 3, .type = kBf16, .persistent = 256}),
    name);

// Of short types, with what the optimizer keeps of them, and its copies of gradients.
INSTANTIATE_TEST_SUITE_P(
    ShortTypes, RunMemory,
    testing::Values(Case{.type = kBf16}, Case{.optimizer = kSgd, .type = kBf16},
                    Case{.type = kBf16, .sums = at::kFloat},
                    Case{.pipe = 2, .interval = 2, .type = at::kHalf},
                    Case{.schedule = "zbv", .pipe = 2, .type = kBf16, .sums = at::kFloat},
                    Case{.tied = true, .type = kBf16, .sums = at::kFloat},
                    Case{.states = kFile, .type = kBf16},
                    Case{.samples = 1, .hidden = 256, .type = kBf16},
                    Case{.data = 2, .samples = 1, .hidden = 256, .type = kBf16},
                    Case{.data = 2, .samples = 1, .hidden = 256, .type = kBf16, .sums = at::kFloat},
                    Case{.data = 2, .zero = 1, .samples = 1, .hidden = 256, .type = kBf16},
                    Case{.data = 2, .zero = 2, .samples = 1, .hidden = 256, .type = at::kHalf},
                    Case{.pipe = 2, .data = 2, .zero = 2, .type = kBf16, .sums = at::kFloat},
                    Case{.data = 2, .zero = 3, .samples = 1, .hidden = 256, .type = kBf16},
                    Case{.pipe = 2, .data = 2, .zero = 3, .type = kBf16, .sums = at::kFloat}),
    name);

}  // namespace
}  // namespace penstock::run
