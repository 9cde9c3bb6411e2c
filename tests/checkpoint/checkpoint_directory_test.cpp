#include "penstock/files/checkpoint/checkpoint_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "penstock/core/error.h"
#include "penstock/core/output_lock.h"
#include "tests/checkpoint/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing_support::message_of;
using testing_support::TemporaryFolder;

std::vector<std::int64_t> steps_of(const std::vector<Found>& all) {
  std::vector<std::int64_t> steps;
  for (const Found& each : all) steps.push_back(each.step);
  return steps;
}

using Steps = std::vector<std::int64_t>;

// All but the files of locks, which go with the directory's owner.
std::vector<std::string> saved_in(const TemporaryFolder& folder) {
  std::vector<std::string> names = folder.names();
  std::erase_if(names, [](const std::string& name) {
    return name.starts_with('.') && name.ends_with(OutputLock::kFileName);
  });
  return names;
}

TEST(CheckpointDirectory, KeepsTheLastAndMarkedOnes) {
  std::vector<Found> all;
  for (const std::int64_t step : {60, 50, 40, 30, 20, 10}) all.push_back({.step = step});
  EXPECT_EQ(steps_of(not_kept(all, {})), Steps{});
  EXPECT_EQ(steps_of(not_kept(all, {.last = 2})), (Steps{40, 30, 20, 10}));
  EXPECT_EQ(steps_of(not_kept(all, {.last = 1, .every = 20})), (Steps{50, 30, 10}));
  EXPECT_EQ(steps_of(not_kept({all[0]}, {.last = 1})), Steps{});
}

TEST(CheckpointDirectory, ListsWholeOnesNewestFirst) {
  const TemporaryFolder folder;
  EXPECT_EQ(checkpoints_in(folder.file("none")), std::vector<Found>{});
  for (const char* name :
       {"step-00000010", "step-00000200", "step-123456789", "step-00000030.saving", "step-0000004x",
        "step-5", "step-000000005", "other"}) {
    fs::create_directory(folder.file(name));
  }
  EXPECT_EQ(steps_of(checkpoints_in(folder.path())), (Steps{123456789, 200, 10}));
  EXPECT_EQ(folder_of("d", 40), "d/step-00000040");
  EXPECT_EQ(folder_of("d", 123456789), "d/step-123456789");
}

TEST(CheckpointDirectory, LeavesFoldersThatAreNotItsOwn) {
  const TemporaryFolder folder;
  const SmallCheckpoint small;
  CheckpointDirectory directory(folder.path());
  small.save(directory, folder.path(), 10);
  fs::create_directory_symlink("step-00000010", folder.file("a-link"));
  fs::create_directory(folder.file("site"));
  std::ofstream(folder.file("site/manifest.json")) << "{}";
  fs::copy(folder.file("step-00000010"), folder.file("best"));
  fs::create_symlink("loop", folder.file("loop"));
  fs::create_directory(folder.file("site.saving"));
  std::ofstream(folder.file("site.saving/manifest.json")) << "{}";
  small.save(directory, folder.path(), 20);
  const std::vector<Found> all = checkpoints_in(folder.path());
  EXPECT_EQ(steps_of(all), (Steps{20, 10, 10}));
  EXPECT_EQ(steps_of(steps_in(folder.path())), (Steps{20, 10}));
  for (const Found& old : not_kept(all, {.last = 1})) directory.remove(old);
  EXPECT_EQ(saved_in(folder), (std::vector<std::string>{"a-link", "best", "loop", "site",
                                                        "site.saving", "step-00000020"}));
  for (const char* name : {"", "a/b", ".hidden", "latest", "x.saving", " x", "x ", "a\nb"}) {
    EXPECT_NE(message_of([&] { directory.begin(name, 0); }).find("must be that of a folder"),
              std::string::npos);
  }
  EXPECT_NE(message_of([&] { directory.begin(std::string("best\0x", 6), 0); }).find("must be"),
            std::string::npos);
}

TEST(CheckpointDirectory, HasNoNameForWhatIsNotWhole) {
  const TemporaryFolder folder;
  const SmallCheckpoint small;
  CheckpointDirectory directory(folder.path());
  const std::string saving = directory.begin("step-00000010", 0);
  write_shard(saving, 0, 2, small.pieces_of(0));
  EXPECT_EQ(saved_in(folder), std::vector<std::string>{"step-00000010.saving"});
  fs::create_directory(folder.file("step-00000005.removing"));
  fs::create_directory(folder.file("mine.saving"));
  std::ofstream(folder.file("mine.saving/notes")) << "x";
  fs::create_directory(folder.file("best.saving"));
  write_shard(folder.file("best.saving"), 0, 2, small.pieces_of(0));
  small.save(directory, folder.path(), 20);  // Removes what that save has left.
  EXPECT_EQ(saved_in(folder), (std::vector<std::string>{"mine.saving", "step-00000020"}));
}

TEST(CheckpointDirectory, ReplacesAStepThatIsSavedAgain) {
  const TemporaryFolder folder;
  SmallCheckpoint small;
  CheckpointDirectory directory(folder.path());
  small.save(directory, folder.path(), 10);
  small.cut = bytes_of_numbers(SmallCheckpoint::kCut, 77);
  const std::string path = small.save(directory, folder.path(), 10);
  EXPECT_EQ(saved_in(folder), std::vector<std::string>{"step-00000010"});
  SavedCheckpoint saved(path);
  small.expect_in(saved);
  directory.remove({.step = 10, .folder = path});
  EXPECT_EQ(saved_in(folder), std::vector<std::string>{});
}

TEST(CheckpointDirectory, KnowsItsCheckpointHoweverItIsWritten) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("checkpoints");
  const std::string step = folder_of(directory, 4);
  std::filesystem::create_directories(step);
  std::filesystem::create_directories(folder.file("other"));
  std::filesystem::create_directory_symlink(step, folder.file("other/best"));
  std::filesystem::create_directory_symlink(folder.file("other"), directory + "/step-00000008");
  const std::filesystem::path before = std::filesystem::current_path();
  EXPECT_TRUE(is_in(step, directory + "/"));
  EXPECT_TRUE(is_in(step + "/", directory));
  EXPECT_TRUE(is_in(step + "/.", directory));
  EXPECT_TRUE(is_in(folder.file("other/best"), directory));
  EXPECT_TRUE(is_in(directory + "/step-00000008", directory));
  std::filesystem::current_path(directory);
  EXPECT_TRUE(is_in("step-00000004", directory));
  EXPECT_TRUE(is_in("step-00000004", "."));
  std::filesystem::current_path(before);
  EXPECT_FALSE(is_in(step, folder.file("other")));
  EXPECT_FALSE(is_in(directory, directory));
  EXPECT_FALSE(is_in(directory + "/step-00000005", directory));
  EXPECT_FALSE(is_in(step, folder.file("none")));
}

TEST(CheckpointDirectory, IsOneProcessesAlone) {
  const TemporaryFolder folder;
  const CheckpointDirectory directory(folder.path());
  const auto another = [&] { CheckpointDirectory(folder.path()); };
  EXPECT_NE(message_of(another).find("cannot write checkpoints to "), std::string::npos);
}

TEST(CheckpointDirectory, SaysHowManyBytesAreMissing) {
  const TemporaryFolder folder;
  CheckpointDirectory directory(folder.path());
  const auto begin = [&] { directory.begin("step-00000010", std::uint64_t{1} << 60); };
  EXPECT_NE(message_of(begin).find("it needs 1099511627776 MiB, "), std::string::npos);
  EXPECT_EQ(saved_in(folder), std::vector<std::string>{});
}

TEST(CheckpointDirectory, SaysWhatCannotBeMade) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("file")) << "x";
  const auto make = [&] { CheckpointDirectory(folder.file("file/checkpoints")); };
  EXPECT_NE(message_of(make).find("cannot make the directory"), std::string::npos);
}

}  // namespace
}  // namespace penstock::checkpoint
