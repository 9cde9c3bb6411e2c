// Ranks that share a layer's weights save their parts as boxes of one parameter, which is read
// whole, in another cut, and in slices of a part.
#include "penstock/runtime/saving/saved_piece.h"

#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "penstock/core/text.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/files/checkpoint/shard.h"
#include "penstock/nn/decoder.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/weights/safetensors.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::saving {
namespace {

using partition::Share;
using testing_support::same_bits;
using testing_support::TemporaryFolder;
using train::StatePiece;

class Cut : public nn::Layer {
 public:
  explicit Cut(const nn::Making& making) {
    register_part("rows", making, {13, 8}, {.dimension = 0});
    register_part("columns", making, {12, 17}, {.dimension = 1});
    register_parameter("bias", making.parameter({3}));
    const torch::NoGradGuard no_grad;
    const nn::FillParameter fill = nn::normal_parameters(1.0);
    for (auto& each : named_parameters()) {
      fill(each.key(), each.value(), nn::cut_of(cuts(), each.key()));
    }
  }
};

// The weights of the layer on a rank with this share.
std::vector<StatePiece> weights_of(const Share& share) {
  const auto make = [](const nn::Making& making) {
    return std::shared_ptr<nn::Layer>(std::make_shared<Cut>(making));
  };
  const nn::BuiltLayer built = nn::build_layer({nn::layer("cut", make)}, 7, 0, {.share = share});
  std::vector<StatePiece> pieces;
  for (const nn::ModelParameter& each : nn::parameters_of(built, "cut")) {
    pieces.push_back(train::weight_of(each.name, each.tensor.sizes(), each.cut, each.tensor));
  }
  return pieces;
}

// The same, each as so many slices one behind the other, as ranks of ZeRO have them.
std::vector<StatePiece> sliced(const std::vector<StatePiece>& whole, std::int64_t slices) {
  std::vector<StatePiece> pieces;
  for (const StatePiece& each : whole) {
    std::int64_t first = 0;
    for (const at::Tensor& values : each.values.flatten().tensor_split(slices)) {
      pieces.push_back(each);
      pieces.back().first = first;
      pieces.back().values = values;
      first += values.numel();
    }
  }
  return pieces;
}

// Saves a shard for each rank.  What every rank has, the first saves.
std::string save(const TemporaryFolder& folder, const std::vector<std::vector<StatePiece>>& ranks) {
  checkpoint::CheckpointDirectory directory(folder.path());
  const std::string to = directory.begin("a", 0);
  std::vector<checkpoint::Manifest> shards;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<checkpoint::PieceToSave> pieces;
    std::vector<at::Tensor> values;
    for (const StatePiece& each : ranks[rank]) {
      if (rank > 0 && each.box.empty()) continue;
      values.push_back(each.values.contiguous());
      pieces.push_back({.name = each.name,
                        .state = each.state,
                        .type = weights::type_of(values.back().scalar_type(), each.name),
                        .shape = each.shape,
                        .box = each.box,
                        .first = each.first,
                        .count = values.back().numel(),
                        .bytes = {static_cast<const char*>(values.back().const_data_ptr()),
                                  values.back().nbytes()}});
    }
    shards.push_back(checkpoint::write_shard(to, rank, ranks.size(), pieces));
  }
  directory.commit("a", checkpoint::merge(shards));
  return folder.file("a");
}

void expect_read(checkpoint::SavedCheckpoint& saved, const std::vector<StatePiece>& expected) {
  for (StatePiece piece : expected) {
    const at::Tensor values = piece.values;
    piece.values = at::zeros_like(values);
    verify_piece(saved, piece);
    read_piece(saved, piece);
    EXPECT_TRUE(same_bits(piece.values, values)) << piece.name << to_string(piece.box);
  }
}

TEST(SavedPiece, PartsAreSavedAsBoxesAndReadInAnyCut) {
  for (const std::int64_t slices : {1, 3}) {
    const TemporaryFolder folder;
    checkpoint::SavedCheckpoint saved(
        save(folder, {sliced(weights_of({0, 2}), slices), sliced(weights_of({1, 2}), slices)}));
    const checkpoint::Tensor& columns = *saved.manifest().find("cut.columns", "weight");
    EXPECT_EQ(columns.shape, (Sizes{12, 17}));
    EXPECT_EQ(std::ssize(columns.pieces), 2 * slices);
    EXPECT_EQ(columns.pieces.front().box, (Box{{0, 12}, {0, 9}}));
    EXPECT_EQ(columns.pieces.back().box, (Box{{0, 12}, {9, 8}}));
    expect_read(saved, weights_of({}));
    expect_read(saved, sliced(weights_of({}), 4));
    for (const std::int64_t of : {2, 3, 5}) {
      for (std::int64_t i = 0; i < of; ++i) {
        SCOPED_TRACE(str(i, " of ", of));
        expect_read(saved, weights_of({i, of}));
        expect_read(saved, sliced(weights_of({i, of}), 2));
      }
    }
  }
}

TEST(SavedPiece, OneRankAloneHasTheFirstElement) {
  const auto has_it = [](const Share& share) {
    std::vector<bool> all;
    for (const StatePiece& each : weights_of(share)) all.push_back(each.has_first_element());
    return all;
  };
  EXPECT_EQ(has_it({0, 2}), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(has_it({1, 2}), (std::vector<bool>{false, false, true}));
}

}  // namespace
}  // namespace penstock::saving
