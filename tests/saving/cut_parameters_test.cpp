// Ranks that share a layer's weights save their parts as boxes of one parameter, which is read
// whole, and in another cut.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <map>
#include <mutex>

#include "penstock/comm/communicator.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/difference.h"
#include "penstock/nn/decoder.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/runtime/saving/checkpoint_writer.h"
#include "penstock/runtime/train/training_state.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::saving {
namespace {

using partition::Share;
using testing_support::same_bits;
using testing_support::TemporaryFolder;
using train::StatePiece;
using train::Trainer;
using train::TrainerOptions;
using train::ZeroStage;

class Cut : public nn::Layer {
 public:
  explicit Cut(const nn::Making& making)
      : rows_(register_part("rows", making, {13, 8}, /*dimension=*/0)),
        columns_(register_part("columns", making, {12, 17}, /*dimension=*/1)),
        bias_(register_parameter("bias", making.parameter({3}))) {}
  at::Tensor forward(const at::Tensor& x) override {
    return (rows_.square().sum() + columns_.cos().sum()) * x * bias_;
  }

 private:
  at::Tensor rows_, columns_, bias_;
};

// The model that a rank with this share makes, whatever the group that it trains in.
std::vector<nn::LayerSpec> model_of(const Share& share) {
  return {nn::layer("cut", [share](const nn::Making&) {
    auto layer = std::make_shared<Cut>(nn::Making{.share = share});
    const torch::NoGradGuard no_grad;
    const nn::Cuts cuts = nn::cuts_in(*layer);
    const nn::FillParameter fill = nn::normal_parameters(1.0);
    for (auto& each : layer->named_parameters()) {
      fill(each.key(), each.value(), nn::cut_of(cuts, each.key()));
    }
    return layer;
  })};
}

// Runs `use` with a Trainer of a rank with this share, which is alone in its data group.
template <class Use>
void with_trainer(const Share& share, const TemporaryFolder& folder, bool has_slices,
                  const Use& use) {
  comm::run_ranks(1, [&](comm::Communicator& alone) {
    TrainerOptions options{.microbatches = 1};
    if (has_slices) {  // Of pages in files, which one rank has, too.
      options.zero = {.stage = ZeroStage::Parameters};
      options.offload.parameters = {offload::Place::File, folder.path()};
    }
    const auto loss = [](const at::Tensor& y, const at::Tensor& t) {
      return (y - t).square().sum();
    };
    Trainer trainer(options, model_of(share), loss, alone);
    use(trainer, alone);
  });
}

void step(Trainer& trainer) { trainer.step(at::full({1, 3}, 0.5), at::full({1, 3}, 2.0)); }

// Saves what two ranks that share the layer have, after a step of each.
void save(const TemporaryFolder& folder, bool has_slices) {
  comm::run_ranks(2, [&](comm::Communicator& both) {
    with_trainer({both.rank().value, 2}, folder, has_slices,
                 [&](Trainer& trainer, comm::Communicator&) {
                   step(trainer);
                   execute::Progress progress;
                   CheckpointWriter writer(both, progress, folder.file("saved"), false);
                   writer.begin({.name = checkpoint::name_of(1), .step = 1, .pieces = [&] {
                                   return train::state_of(trainer);
                                 }});
                   writer.finish();
                 });
  });
}

using Parts = std::map<std::pair<std::string, std::string>, at::Tensor>;

// What a rank with this share has, by name and state; a slice is all of its part.
Parts parts_of(Trainer& trainer) {
  Parts parts;
  for (const StatePiece& piece : train::state_of(trainer)) {
    parts[{piece.name, piece.state}] =
        piece.values.detach().clone().view(sizes_of(piece.box, piece.shape));
  }
  return parts;
}

Parts read_by(const Share& share, const TemporaryFolder& folder, bool has_slices) {
  Parts parts;
  with_trainer(share, folder, has_slices, [&](Trainer& trainer, comm::Communicator& alone) {
    execute::Progress progress;
    Checkpoints reads(trainer, alone, progress, {.directory = folder.file("saved")}, {});
    EXPECT_EQ(reads.resume()->step, 1);
    parts = parts_of(trainer);
  });
  return parts;
}

// The indices of a part of `of`, by the rule that the first ones have one more.
at::Tensor part_of(const at::Tensor& whole, std::int64_t dimension, const Share& share) {
  return whole.tensor_split(share.of, dimension)[static_cast<std::size_t>(share.index)];
}

void expect_parts(const Parts& parts, const Parts& whole, const Share& share) {
  ASSERT_EQ(parts.size(), whole.size());
  for (const auto& [key, values] : whole) {
    const bool has_elements = key.second != "step";
    at::Tensor expected = values;
    if (has_elements && key.first == "cut.rows") expected = part_of(values, 0, share);
    if (has_elements && key.first == "cut.columns") expected = part_of(values, 1, share);
    EXPECT_TRUE(same_bits(parts.at(key), expected)) << key.second << " of " << key.first;
  }
}

class CutParameters : public testing::TestWithParam<bool> {};

TEST_P(CutParameters, AreSavedAsBoxesAndReadInAnyCut) {
  const TemporaryFolder folder;
  save(folder, GetParam());
  checkpoint::SavedCheckpoint saved(folder.file("saved/step-00000001"));
  const checkpoint::Tensor* const columns = saved.manifest().find("cut.columns", "exp_avg");
  ASSERT_NE(columns, nullptr);
  EXPECT_EQ(columns->shape, (Sizes{12, 17}));
  ASSERT_EQ(columns->pieces.size(), 2u);
  EXPECT_EQ(columns->pieces[0].box, (Box{{0, 12}, {0, 9}}));
  EXPECT_EQ(columns->pieces[1].box, (Box{{0, 12}, {9, 8}}));
  EXPECT_EQ(saved.manifest().find("cut.columns", "step")->pieces.size(), 1u);
  const Parts whole = read_by({}, folder, GetParam());
  for (const Share& share : {Share{0, 2}, Share{1, 2}, Share{0, 3}, Share{1, 3}, Share{2, 3}}) {
    SCOPED_TRACE(str(share.index, " of ", share.of));
    expect_parts(read_by(share, folder, !GetParam()), whole, share);
  }
  // Of the two that have saved, it is what they had.
  with_trainer({1, 2}, folder, false, [&](Trainer& trainer, comm::Communicator&) {
    step(trainer);
    expect_parts(parts_of(trainer), whole, {1, 2});
  });
}

INSTANTIATE_TEST_SUITE_P(Slices, CutParameters, testing::Bool(), [](const auto& each) {
  return std::string(each.param ? "OfPages" : "None");
});

TEST(CutParametersByName, AreSetByValuesOfTheWhole) {
  const TemporaryFolder folder;
  const at::Tensor values = at::arange(12 * 17, at::kFloat).view({12, 17});
  with_trainer({1, 2}, folder, false, [&](Trainer& trainer, comm::Communicator&) {
    trainer.set("cut.columns", values);
    EXPECT_TRUE(same_bits(parts_of(trainer).at({"cut.columns", "weight"}),
                          values.narrow(1, 9, 8).contiguous()));
    EXPECT_TRUE(same_bits(trainer.get("cut.columns").narrow(1, 9, 8), values.narrow(1, 9, 8)));
  });
}

// A checkpoint that penstock 0.1 wrote (tests/checkpoint/version_1_test.cpp), read by ranks of
// other layouts and saved again.
TEST(CheckpointVersions, OneIsReadInAnyLayout) {
  const std::string old = str(PENSTOCK_SOURCE_DIR, "/tests/checkpoint/version_1");
  for (const mesh::Shape& mesh : {mesh::Shape{.pipe = 2}, mesh::Shape{.data = 2}}) {
    const TemporaryFolder folder;
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      Trainer trainer(
          {.mesh = mesh, .microbatches = 2, .zero = {.stage = ZeroStage::OptimizerStates}},
          nn::mlp_layers(10, 2),
          [](const at::Tensor& y, const at::Tensor& t) { return (y - t).sum(); }, communicator);
      execute::Progress progress;
      Checkpoints reads(trainer, communicator, progress, {.directory = old}, {});
      EXPECT_EQ(reads.resume()->client_state, (checkpoint::Texts{{"place", "the mill"}}));
      Checkpoints writes(trainer, communicator, progress, {.directory = folder.path()}, {});
      writes.save();
    });
    checkpoint::SavedCheckpoint a(old + "/step-00000002"), b(folder.file("step-00000002"));
    EXPECT_TRUE(checkpoint::difference(a, b).different.empty());
    EXPECT_EQ(checkpoint::difference(a, b).equal, a.manifest().tensors.size());
  }
}

}  // namespace
}  // namespace penstock::saving
