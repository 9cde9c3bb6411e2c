#include "penstock/core/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "penstock/core/error.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

using testing_support::TemporaryFolder;
using Names = std::vector<std::string>;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

TEST(AtomicFile, ReplacesTheWholeFile) {
  const TemporaryFolder folder;
  write_atomically(folder.file("a"), {"a long text"});
  write_atomically(folder.file("a"), {"new", "er"});
  EXPECT_EQ(content(folder.file("a")), "newer");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(AtomicFile, AFailureNamesTheFileAndLeavesNothing) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("taken"));
  for (const char* name : {"taken", "no/folder"}) {
    try {
      write_atomically(folder.file(name), {"x"});
      ADD_FAILURE() << "wrote " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.message().find("cannot write \"" + folder.file(name) + "\": "), 0u)
          << error.message();
    }
  }
  EXPECT_EQ(folder.names(), Names{"taken"});
}

TEST(AtomicFile, ALinkStaysALink) {
  const TemporaryFolder folder;
  write_atomically(folder.file("a"), {"old"});
  std::filesystem::create_symlink("a", folder.file("link"));
  write_atomically(folder.file("link"), {"new"});
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_EQ(content(folder.file("a")), "new");
}

TEST(AtomicFile, ALinkToWhatIsNotThereStaysOne) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("inner"));
  std::filesystem::create_symlink("inner/later", folder.file("link"));
  std::filesystem::create_symlink("link", folder.file("other"));
  write_atomically(folder.file("other"), {"new"});
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("other")));
  EXPECT_EQ(content(folder.file("inner/later")), "new");
  std::filesystem::create_symlink("loop", folder.file("loop"));
  EXPECT_THROW(write_atomically(folder.file("loop"), {"new"}), Error);
}

TEST(AtomicFile, AFileKeepsItsMode) {
  const TemporaryFolder folder;
  const auto mode = [&] { return std::filesystem::status(folder.file("a")).permissions(); };
  write_atomically(folder.file("a"), {"old"});
  const auto its_own = std::filesystem::perms{0600};
  ASSERT_NE(mode(), its_own);
  std::filesystem::permissions(folder.file("a"), its_own);
  write_atomically(folder.file("a"), {"new"});
  EXPECT_EQ(mode(), its_own);
}

// Where it writes first can be guessed, so what stands there already must not be followed.
TEST(AtomicFile, ALinkInTheWayIsNotFollowed) {
  const TemporaryFolder folder;
  write_atomically(folder.file("victim"), {"untouched"});
  const std::string way = folder.file("a") + ".tmp-" + std::to_string(::getpid()) + "-0";
  std::filesystem::create_symlink("victim", way);
  write_atomically(folder.file("a"), {"new"});
  EXPECT_EQ(content(folder.file("victim")), "untouched");
  EXPECT_EQ(content(folder.file("a")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(way));
}

TEST(AtomicFile, OfSeveralAllAreReplacedOrNone) {
  const TemporaryFolder folder;
  write_atomically(folder.file("a"), {"old"});
  std::filesystem::create_directory(folder.file("taken"));
  for (const char* name : {"taken", "no/folder"}) {
    const NewContent both[] = {{folder.file("a"), {"new"}}, {folder.file(name), {"new"}}};
    EXPECT_THROW(write_atomically(both), Error);
    EXPECT_EQ(content(folder.file("a")), "old");
    EXPECT_EQ(folder.names(), (Names{"a", "taken"}));
  }
  const NewContent both[] = {{folder.file("a"), {"new"}}, {folder.file("b"), {"new"}}};
  write_atomically(both);
  EXPECT_EQ(content(folder.file("a")) + content(folder.file("b")), "newnew");
}

// Renaming over /dev/null would take it from the whole machine.
TEST(AtomicFile, APipeIsWrittenToAndStays) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  auto read = std::async(std::launch::async, [&] { return content(folder.file("pipe")); });
  write_atomically(folder.file("pipe"), {"through ", "it"});
  EXPECT_EQ(read.get(), "through it");
  EXPECT_TRUE(std::filesystem::is_fifo(folder.file("pipe")));
}

// A head and two parts of one kind.
void replace_all(const TemporaryFolder& folder, const std::string& kind) {
  std::vector<PreparedFile> parts;
  parts.emplace_back(folder.file("a"), std::vector<std::string_view>{kind});
  parts.emplace_back(folder.file("b"), std::vector<std::string_view>{kind});
  PreparedFile head(folder.file("head"), {kind});
  replace_together(parts, head);
}

TEST(AtomicFile, AReaderFindsTheOldFilesTheNewOnesOrNoHead) {
  const TemporaryFolder folder;
  replace_all(folder, "0");
  std::atomic<bool> is_over = false;
  int mixed = 0, seen = 0;
  std::thread reader([&] {
    while (!is_over) {
      const std::string before = content(folder.file("head"));
      const std::string parts = content(folder.file("a")) + content(folder.file("b"));
      if (before.empty() || content(folder.file("head")) != before) continue;
      ++seen;
      mixed += parts == before + before ? 0 : 1;
    }
  });
  for (int kind = 1; kind <= 40; ++kind) replace_all(folder, std::to_string(kind));
  is_over = true;
  reader.join();
  EXPECT_EQ(mixed, 0) << "of " << seen;
  EXPECT_GT(seen, 0);
  EXPECT_EQ(folder.names(), (Names{"a", "b", "head"}));
}

TEST(AtomicFile, WhatIsRefusedInTheMiddleLeavesAllAsBefore) {
  const TemporaryFolder folder;
  replace_all(folder, "old");
  std::vector<PreparedFile> parts;
  parts.emplace_back(folder.file("a"), std::vector<std::string_view>{"new"});
  parts.emplace_back(folder.file("c"), std::vector<std::string_view>{"new"});
  parts.emplace_back(folder.file("b"), std::vector<std::string_view>{"new"});
  PreparedFile head(folder.file("head"), {"new"});
  std::filesystem::remove(folder.file("b"));
  std::filesystem::create_directories(folder.file("b/full"));  // No file takes its place.
  EXPECT_THROW(replace_together(parts, head), Error);
  EXPECT_EQ(content(folder.file("a")), "old");
  EXPECT_EQ(content(folder.file("head")), "old");
  EXPECT_FALSE(std::filesystem::exists(folder.file("c"))) << "there was none";
}

TEST(AtomicFile, AHeadThatStaysTheSameIsThereAllTheTime) {
  const TemporaryFolder folder;
  write_atomically(folder.file("head"), {"one"});
  struct stat before = {}, after = {};
  ::stat(folder.file("head").c_str(), &before);
  std::vector<PreparedFile> parts;
  parts.emplace_back(folder.file("a"), std::vector<std::string_view>{"new"});
  PreparedFile head(folder.file("head"), {"one"});
  replace_together(parts, head);
  ::stat(folder.file("head").c_str(), &after);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(content(folder.file("a")), "new");
}

}  // namespace
}  // namespace penstock
