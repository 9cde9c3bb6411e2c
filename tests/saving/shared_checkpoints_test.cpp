// Checkpoints of every mesh of pipe, data and tensor are read by every other.
//
// States are those that were saved, bit for bit; the next loss differs by the order of sums alone,
// as in tests/train/shared_layers_test.cpp.
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/nn/token_loss.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/token_batches.h"

namespace penstock::saving {
namespace {

using mesh::Axis;
using testing_support::same_bits;

constexpr std::int64_t kTokens = 41;

nn::DecoderOptions tiny() {
  return {.vocabulary = kTokens,
          .layers = 2,
          .hidden = 8,
          .intermediate = 12,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 4,
          .qkv_bias = true,
          .tie_embeddings = true};
}

// Whose queries, keys and values are one parameter, with parts of three ranges.
nn::DecoderOptions tiny_gpt2() {
  nn::DecoderOptions options = tiny();
  options.form = nn::DecoderForm::Gpt2;
  options.heads = options.kv_heads = 5;
  options.norm = nn::NormKind::Layer;
  options.mlp = nn::MlpKind::Gelu;
  options.rotary.reset();
  options.positions = 7;
  options.output_bias = options.mlp_bias = true;
  return options;
}

struct Layout {
  std::int32_t pipe;
  std::int32_t data;
  std::int32_t tensor;
  int zero;
};

std::string name_of(const Layout& layout) {
  return str(layout.pipe, "x", layout.data, "x", layout.tensor, " ZeRO ", layout.zero);
}

// Twelve meshes.
const std::vector<Layout> kLayouts = {{1, 1, 1, 0}, {2, 1, 1, 0}, {1, 2, 1, 1}, {2, 2, 1, 3},
                                      {1, 1, 2, 0}, {1, 1, 4, 0}, {2, 1, 2, 0}, {1, 2, 2, 1},
                                      {1, 2, 2, 3}, {2, 2, 2, 2}, {1, 4, 2, 3}, {2, 1, 4, 0}};

train::TrainerOptions options_of(const Layout& layout) {
  train::TrainerOptions options{.mesh = mesh::Shape{.pipe = layout.pipe, .data = layout.data}.with(
                                    Axis::Tensor, layout.tensor),
                                .microbatches = 4 / layout.data,
                                .partition = partition::Uniform{},
                                .optimizer = {.lr = 1e-2, .weight_decay = 0.1},
                                .loss_scale = train::LossScale::tokens()};
  options.zero.stage = static_cast<train::ZeroStage>(layout.zero);
  options.zero.bucket_bytes = 1024;
  return options;
}

struct State {
  double next_loss = 0.0;
  std::map<std::string, at::Tensor> tensors;  // Tensors when a step was saved, or read.
};

class SharedCheckpoints : public testing::TestWithParam<nn::DecoderOptions (*)()> {
 protected:
  SharedCheckpoints() {
    for (int i = 0; i < 3; ++i) {
      batches_.push_back(train::with_masked_targets(8, /*length=*/6, kTokens));
    }
  }

  // Saves after two steps, or reads what was saved; then takes a step.
  State run(const Layout& layout, const std::string& folder, bool saves) const {
    State state;
    std::mutex mutex;
    const train::TrainerOptions options = options_of(layout);
    const auto body = [&](comm::Communicator& ranks) {
      train::Trainer trainer(options, nn::decoder_layers(GetParam()(), nn::normal_parameters(0.2)),
                             nn::token_loss(kTokens), ranks);
      execute::Progress progress;
      Checkpoints checkpoints(trainer, ranks, progress, {.directory = folder},
                              [](const std::string&) {});
      const mesh::Group& replicas = trainer.rank_model().groups().other_samples;
      const auto step = [&](std::size_t number) {
        const auto mine = [&](const nn::Values& values) {
          return values[0].chunk(replicas.size())[replicas.here];
        };
        const train::Batch2& batch = batches_[number];
        return trainer.step(mine(batch.inputs), mine(batch.targets)).loss;
      };
      if (saves) {
        step(0);
        step(1);
        checkpoints.save();
      } else {
        ASSERT_TRUE(checkpoints.resume());
      }
      std::map<std::string, at::Tensor> tensors;
      for (const nn::DecoderParameter& each : nn::decoder_parameters(GetParam()())) {
        tensors[each.name] = trainer.get(each.name);
        tensors[each.name + " exp_avg"] = trainer.get(each.name, "exp_avg");
        tensors[each.name + " exp_avg_sq"] = trainer.get(each.name, "exp_avg_sq");
      }
      const double next = step(2);
      const std::lock_guard lock(mutex);
      if (ranks.rank().value == 0) state = {next, tensors};
    };
    comm::run_ranks(static_cast<std::int32_t>(options.mesh.size()), body);
    return state;
  }

  void expect_read(const Layout& writer, const State& written, const std::string& folder,
                   const Layout& reader) const {
    SCOPED_TRACE(str(name_of(reader), " reads ", name_of(writer)));
    const State read = run(reader, folder, /*saves=*/false);
    EXPECT_EQ(read.tensors.size(), written.tensors.size());
    for (const auto& [name, tensor] : written.tensors) {
      ASSERT_TRUE(read.tensors.contains(name)) << name;
      EXPECT_TRUE(same_bits(tensor, read.tensors.at(name))) << name;
    }
    EXPECT_NEAR(read.next_loss, written.next_loss, 1e-5);
  }

  std::vector<train::Batch2> batches_;
};

TEST_P(SharedCheckpoints, AreReadByTheNextMesh) {
  for (std::size_t i = 0; i < kLayouts.size(); ++i) {
    const testing_support::TemporaryFolder folder;
    const State written = run(kLayouts[i], folder.path(), /*saves=*/true);
    expect_read(kLayouts[i], written, folder.path(), kLayouts[(i + 1) % kLayouts.size()]);
  }
}

// All 132 pairs.
TEST_P(SharedCheckpoints, AreReadByEveryMesh) {
  for (const Layout& writer : kLayouts) {
    const testing_support::TemporaryFolder folder;
    const State written = run(writer, folder.path(), /*saves=*/true);
    for (const Layout& reader : kLayouts) {
      if (name_of(reader) != name_of(writer)) expect_read(writer, written, folder.path(), reader);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, SharedCheckpoints, testing::Values(&tiny, &tiny_gpt2),
                         [](const auto& form) { return form.param == &tiny ? "Llama" : "Gpt2"; });

}  // namespace
}  // namespace penstock::saving
