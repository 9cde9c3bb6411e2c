// A checkpoint in other shards is the same one, bit for bit, or is not there.
#include "penstock/checkpoint/reshard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "penstock/checkpoint/difference.h"
#include "penstock/core/error.h"
#include "tests/checkpoint/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing_support::message_of;
using testing_support::TemporaryFolder;
using Names = std::vector<std::string>;

class ReshardTest : public testing::Test {
 protected:
  void SetUp() override {
    CheckpointDirectory directory(folder_.file("from"));
    path_ = small_.save(directory, folder_.file("from"), 40);
  }
  std::string refusal(const std::string& to, std::size_t shards = 3) {
    return message_of([&] {
      SavedCheckpoint from(path_);
      reshard(from, to, shards);
    });
  }
  TemporaryFolder folder_;
  SmallCheckpoint small_;
  std::string path_;
};

TEST_F(ReshardTest, HasAllInAnyNumberOfEvenShards) {
  for (const std::size_t shards : {1, 2, 3, 7, 64}) {
    SavedCheckpoint from(path_);
    const std::string to = folder_.file(str("to/", shards, "/step-00000040"));
    reshard(from, to, shards);
    SavedCheckpoint made(to);
    made.verify();
    small_.expect_in(made);
    const Manifest &is = made.manifest(), &was = from.manifest();
    EXPECT_EQ(is.step, was.step);
    EXPECT_EQ(is.facts, was.facts);
    EXPECT_EQ(is.values, was.values);
    ASSERT_EQ(is.shards.size(), shards);
    std::vector<std::uint64_t> sizes;
    for (const Shard& shard : is.shards) sizes.push_back(shard.bytes - shard.header_bytes);
    const auto [least, most] = std::ranges::minmax(sizes);
    EXPECT_LE(most - least, 8U) << shards;
    EXPECT_TRUE(difference(from, made).different.empty());
  }
}

TEST_F(ReshardTest, HasMoreShardsThanElements) {
  CheckpointDirectory directory(folder_.file("tiny"));
  const std::string folder = directory.begin("step-00000001", 0);
  Manifest shard = write_shard(folder, 0, 1,
                               {{.name = "a",
                                 .state = "weight",
                                 .shape = {2},
                                 .count = 2,
                                 .bytes = std::string_view(small_.whole).substr(0, 8)}});
  shard.step = 1;
  directory.commit("step-00000001", merge({shard}));
  SavedCheckpoint from(folder_.file("tiny/step-00000001"));
  reshard(from, folder_.file("to"), 9);
  SavedCheckpoint made(folder_.file("to"));
  EXPECT_EQ(made.manifest().shards.size(), 9U);
  EXPECT_EQ(difference(from, made).equal, 1U);
}

TEST_F(ReshardTest, IsNotThereForADamagedCheckpoint) {
  std::fstream file(path_ + "/" + shard_file(1, 2));
  file.seekp(2'000'000);
  file << "damage";
  file.close();
  EXPECT_NE(refusal(folder_.file("a/b/to")).find("is damaged"), std::string::npos);
  EXPECT_EQ(folder_.names(), Names{"from"});
}

TEST_F(ReshardTest, TouchesNothingElseInItsFolder) {
  std::filesystem::create_directories(folder_.file("in/step-00000009.saving"));
  EXPECT_NE(refusal(folder_.file("in/latest")).find("must be that of a folder"), std::string::npos);
  EXPECT_EQ(refusal(folder_.file("in/to")), "no error");
  EXPECT_TRUE(std::filesystem::exists(folder_.file("in/step-00000009.saving")));
}

TEST_F(ReshardTest, ReplacesNothing) {
  EXPECT_NE(refusal(path_).find("is there already, and is not empty"), std::string::npos);
  EXPECT_NE(refusal(folder_.file("from/latest")).find("must be that of a folder"),
            std::string::npos);
  SavedCheckpoint saved(path_);
  small_.expect_in(saved);
}

TEST_F(ReshardTest, WaitsForNobodyWhoSavesThere) {
  const CheckpointDirectory saving(folder_.file("from"));
  EXPECT_NE(refusal(folder_.file("from/other")).find("cannot write checkpoints to "),
            std::string::npos);
}

TEST(EvenPieces, AreCutWhereAShardIsFull) {
  const Manifest manifest{
      .tensors = {{.name = "a", .state = "weight", .shape = {10}},
                  {.name = "b", .state = "weight", .type = ScalarType::I64, .shape = {}},
                  {.name = "c", .state = "weight", .shape = {0}},
                  {.name = "d", .state = "weight", .type = ScalarType::U8, .shape = {12}}}};
  std::vector<std::string> shards;
  for (const auto& pieces : even_pieces(manifest, 3)) {
    Names names;
    for (const PieceToSave& each : pieces) names.push_back(key_of(each));
    shards.push_back(join(names, " "));
  }
  EXPECT_EQ(shards, (Names{"a[0:5]", "a[5:10]", "b c d"}));
}

}  // namespace
}  // namespace penstock::checkpoint
