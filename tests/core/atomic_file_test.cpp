#include "penstock/core/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>

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

// Renaming over /dev/null would take it from the whole machine.
TEST(AtomicFile, APipeIsWrittenToAndStays) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  auto read = std::async(std::launch::async, [&] { return content(folder.file("pipe")); });
  write_atomically(folder.file("pipe"), {"through ", "it"});
  EXPECT_EQ(read.get(), "through it");
  EXPECT_TRUE(std::filesystem::is_fifo(folder.file("pipe")));
}

}  // namespace
}  // namespace penstock
