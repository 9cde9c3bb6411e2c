// A tensor that was saved in boxes, and in runs of them, is read in any other.
#include <gtest/gtest.h>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/core/error.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/files/checkpoint/shard.h"
#include "tests/checkpoint/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::checkpoint {
namespace {

using testing_support::message_of;
using testing_support::TemporaryFolder;

constexpr std::int64_t kRows = 11, kColumns = 9;
const Sizes kShape = {kRows, kColumns};
const Box kLeft = {{0, kRows}, {0, 4}}, kRight = {{0, kRows}, {4, 5}};

// The elements of a region of a tensor that has these bytes, four for each.
std::string bytes_in(const std::string& whole, const Region& region) {
  std::string bytes;
  for_each_run(kShape, region, [&](std::int64_t first, std::int64_t count) {
    bytes += whole.substr(static_cast<std::size_t>(first) * 4, static_cast<std::size_t>(count) * 4);
  });
  return bytes;
}

class BoxesTest : public testing::Test {
 protected:
  // As two ranks save that have the columns left, of which each updates a slice, and one that has
  // the columns right.
  std::vector<std::vector<Region>> regions() const {
    return {{{kLeft, 0, 30}}, {{kLeft, 30, 14}}, {{kRight, 0, 55}}};
  }

  SavedCheckpoint saved(const std::vector<std::vector<Region>>& of_shards) {
    CheckpointDirectory directory(folder_.path());
    const std::string folder = directory.begin("a", 0);
    std::vector<Manifest> shards;
    std::vector<std::string> bytes;
    for (std::size_t s = 0; s < of_shards.size(); ++s) {
      std::vector<PieceToSave> pieces;
      for (const Region& each : of_shards[s]) bytes.push_back(bytes_in(whole_, each));
      for (std::size_t i = 0; i < of_shards[s].size(); ++i) {
        const Region& each = of_shards[s][i];
        pieces.push_back({.name = "w",
                          .state = "weight",
                          .shape = kShape,
                          .box = each.box,
                          .first = each.first,
                          .count = each.count,
                          .bytes = bytes[bytes.size() - of_shards[s].size() + i]});
        keys_.push_back(key_of(pieces.back()));
      }
      shards.push_back(write_shard(folder, s, of_shards.size(), pieces));
    }
    directory.commit("a", merge(shards));
    return SavedCheckpoint(folder_.file("a"));
  }

  TemporaryFolder folder_;
  const std::string whole_ = bytes_of_numbers(kRows * kColumns, 7);
  std::vector<std::string> keys_;
};

TEST_F(BoxesTest, EveryBoxIsReadOfOthers) {
  SavedCheckpoint checkpoint = saved(regions());
  const Tensor& tensor = *checkpoint.manifest().find("w", "weight");
  EXPECT_EQ(tensor.pieces.size(), 3u);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      const Box box = {{row, kRows - row}, {column, std::min<std::int64_t>(3, kColumns - column)}};
      const std::int64_t elements = elements_of(sizes_of(box, kShape));
      for (const Region& region : {Region{box, 0, elements},
                                   Region{box, elements / 3, elements / 2}, Region{{}, row, 40}}) {
        const std::string expected = bytes_in(whole_, region);
        std::string read(expected.size(), '\0');
        checkpoint.read(tensor, region, std::as_writable_bytes(std::span(read)));
        ASSERT_EQ(read, expected) << to_string(region.box) << region.first;
      }
    }
  }
  std::string all;
  checkpoint.read_portions(tensor, 0, tensor.elements(),
                           [&](std::string_view part) { all += part; });
  EXPECT_EQ(all, whole_);
  checkpoint.verify(tensor, {kRight, 3, 20});
}

TEST_F(BoxesTest, PiecesAreCalledByTheirBox) {
  SavedCheckpoint checkpoint = saved(regions());
  EXPECT_EQ(keys_,
            (std::vector<std::string>{"w[0:11,0:4][0:30]", "w[0:11,0:4][30:44]", "w[0:11,4:9]"}));
  EXPECT_EQ(parse_manifest(to_text(checkpoint.manifest()), "m"), checkpoint.manifest());
}

// As ranks save what is fused.
TEST_F(BoxesTest, MayHaveSeveralIntervalsOfADimension) {
  const Box some = {{0, kRows}, {0, 2, 3, 3}}, others = {{0, kRows}, {2, 1, 3, 3}};
  SavedCheckpoint checkpoint = saved({{{some, 0, 40}}, {{some, 40, 26}}, {{others, 0, 33}}});
  EXPECT_EQ(keys_, (std::vector<std::string>{"w[0:11,0:2|3:5|6:8][0:40]",
                                             "w[0:11,0:2|3:5|6:8][40:66]", "w[0:11,2:3|5:6|8:9]"}));
  EXPECT_EQ(parse_manifest(to_text(checkpoint.manifest()), "m"), checkpoint.manifest());
  const Tensor& tensor = *checkpoint.manifest().find("w", "weight");
  for (const Region& region : {Region{{}, 0, kRows * kColumns}, Region{kRight, 3, 50},
                               Region{some, 1, 60}, Region{{{2, 7}, {1, 1, 2, 4}}, 0, 14}}) {
    const std::string expected = bytes_in(whole_, region);
    std::string read(expected.size(), '\0');
    checkpoint.read(tensor, region, std::as_writable_bytes(std::span(read)));
    EXPECT_EQ(read, expected) << to_string(region.box);
  }
}

TEST_F(BoxesTest, MustMakeUpTheTensor) {
  const auto refusal = [&](const std::vector<std::vector<Region>>& regions) {
    return message_of([&] { saved(regions); });
  };
  EXPECT_EQ(refusal({{{kLeft, 0, 44}}}), "tensor \"w\", F32[11, 9]: its element [0, 4] is missing");
  EXPECT_EQ(refusal({{{kLeft, 0, 44}}, {{kRight, 0, 55}, {{{10, 1}, {3, 2}}, 0, 2}}}),
            "tensor \"w\", F32[11, 9]: its element [10, 3] is there 2 times");
  EXPECT_EQ(refusal({{{kLeft, 0, 30}}, {{kRight, 0, 55}}}),
            "tensor \"w\"[0:11,0:4] of 44 elements: there are pieces for 30");
  EXPECT_EQ(refusal({{{kLeft, 0, 30}}, {{kLeft, 29, 15}}, {{kRight, 0, 55}}}),
            "tensor \"w\"[0:11,0:4] of 44 elements: those from 29 to 30 are there twice");
}

}  // namespace
}  // namespace penstock::checkpoint
