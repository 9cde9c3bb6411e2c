// What is read is what was written, or an error: for any range, and for every kind of damage.
#include "penstock/checkpoint/saved_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "penstock/core/error.h"
#include "tests/checkpoint/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/temporary_folder.h"

namespace penstock::checkpoint {
namespace {

constexpr const char* kNoError = "no error";
namespace fs = std::filesystem;
using testing_support::message_of;
using testing_support::TemporaryFolder;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class SavedCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    CheckpointDirectory directory(folder_.path());
    path_ = small_.save(directory, folder_.path(), 40);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  // Opening it, or reading all that a run needs, has to fail; so does verify().
  std::string failure() {
    const auto read_all = [&] {
      SavedCheckpoint saved(path_);
      small_.expect_in(saved);
    };
    const auto verify = [&] { SavedCheckpoint(path_).verify(); };
    EXPECT_NE(message_of(verify), kNoError);
    return message_of(read_all);
  }

  TemporaryFolder folder_;
  SmallCheckpoint small_;
  std::string path_;
};

TEST_F(SavedCheckpointTest, HasWhatWasSaved) {
  SavedCheckpoint saved(path_);
  EXPECT_EQ(saved.manifest().step, 40);
  EXPECT_EQ(saved.manifest().facts, (Texts{{"seed", "1234"}}));
  small_.expect_in(saved);
  saved.verify();
  EXPECT_EQ(saved.manifest().find("cut", "exp_avg_sq"), nullptr);
}

TEST_F(SavedCheckpointTest, GivesAnyElements) {
  SavedCheckpoint saved(path_);
  const Tensor& cut = *saved.manifest().find("cut", "weight");
  testing_support::Random random;
  SCOPED_TRACE(random.seed_text());
  for (int i = 0; i < 200; ++i) {
    const auto first = static_cast<std::int64_t>(random.index_of(SmallCheckpoint::kCut));
    const auto count = static_cast<std::int64_t>(
        random.index_of(static_cast<std::size_t>(SmallCheckpoint::kCut - first) + 1));
    std::string read(static_cast<std::size_t>(count) * 4, '\0');
    saved.read(cut, first, count, std::as_writable_bytes(std::span(read)));
    ASSERT_EQ(read, small_.cut.substr(static_cast<std::size_t>(first) * 4, read.size()))
        << first << " " << count;
  }
}

TEST_F(SavedCheckpointTest, FindsEveryFlippedBit) {
  testing_support::Random random;
  SCOPED_TRACE(random.seed_text());
  const std::vector<std::string> names = {"manifest.json", shard_file(0, 2), shard_file(1, 2)};
  for (int i = 0; i < 300; ++i) {
    const std::string& name = names[i < 100 ? 0 : 1 + random.index_of(2)];
    const std::string good = content_of(file(name));
    // A third of them in the beginning, where headers are.
    const std::size_t place = random.index_of(i % 3 == 0 ? 300 : good.size());
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ (1 << random.index_of(8)));
    write(file(name), bad);
    const std::string message = failure();
    EXPECT_NE(message.find(name), std::string::npos)
        << name << " byte " << place << ": " << message;
    write(file(name), good);
  }
  EXPECT_EQ(message_of([&] { SavedCheckpoint(path_).verify(); }), kNoError);
}

TEST_F(SavedCheckpointTest, NamesTheTensorsOfADamagedChunk) {
  std::string bytes = content_of(file(shard_file(1, 2)));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write(file(shard_file(1, 2)), bytes);
  const std::string message = failure();
  EXPECT_NE(message.find("is damaged: bytes 3145728 to"), std::string::npos) << message;
  EXPECT_NE(message.find("there are exp_avg of \"cut\""), std::string::npos) << message;
}

TEST_F(SavedCheckpointTest, FindsFilesThatAreCutShort) {
  for (const std::string& name : {std::string("manifest.json"), shard_file(1, 2)}) {
    const std::string good = content_of(file(name));
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{kChunkBytes - 1},
          std::size_t{kChunkBytes}, std::size_t{kChunkBytes + 1}, good.size() - 1}) {
      if (size >= good.size()) continue;
      write(file(name), good.substr(0, size));
      EXPECT_NE(failure(), kNoError) << name << " of " << size;
    }
    write(file(name), good + "x");
    EXPECT_NE(failure(), kNoError) << name << " and a byte more";
    write(file(name), good);
  }
}

TEST_F(SavedCheckpointTest, FindsShardsThatAreMissingOrInAnothersPlace) {
  const std::string first = file(shard_file(0, 2)), second = file(shard_file(1, 2));
  fs::rename(first, first + ".away");
  EXPECT_NE(failure().find("cannot be read"), std::string::npos);
  fs::rename(second, first);
  fs::rename(first + ".away", second);
  EXPECT_NE(failure(), kNoError) << "swapped";
}

TEST_F(SavedCheckpointTest, FindsAShardOfAnotherStep) {
  SmallCheckpoint other;
  other.cut = bytes_of_numbers(SmallCheckpoint::kCut, 99);
  CheckpointDirectory directory(folder_.path());
  const std::string stale = other.save(directory, folder_.path(), 39);
  fs::copy_file(stale + "/" + shard_file(1, 2), file(shard_file(1, 2)),
                fs::copy_options::overwrite_existing);
  EXPECT_NE(failure().find("is damaged"), std::string::npos);
}

TEST_F(SavedCheckpointTest, FindsZeros) {
  std::string bytes = content_of(file(shard_file(0, 2)));
  std::fill_n(bytes.begin() + 8192, 4096, '\0');
  write(file(shard_file(0, 2)), bytes);
  EXPECT_NE(failure().find("is damaged"), std::string::npos);
}

}  // namespace
}  // namespace penstock::checkpoint
