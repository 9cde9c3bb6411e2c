#include "penstock/core/foreign_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

using testing_support::message_of;

class ForeignFiles : public testing::Test {
 protected:
  std::string refusal(const std::string& path, std::size_t bytes_max = 100) const {
    return message_of([&] { read_foreign_file("recipe", path, bytes_max); });
  }
  std::string problem(const std::string& path) const { return open_foreign_file(path).problem; }

  testing_support::TemporaryFolder folder_;
};

TEST_F(ForeignFiles, GivesAllBytes) {
  const std::string path = folder_.file("bytes");
  const std::string bytes = std::string("a\0b\r\n", 5) + std::string(200'000, 'x');
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(read_foreign_file("recipe", path, bytes.size()), bytes);
  EXPECT_EQ(open_foreign_file(path).bytes, bytes.size());
}

// A hole of a terabyte takes no block of the disk, and would take all memory.
TEST_F(ForeignFiles, ALargerOneIsRefusedBeforeItIsRead) {
  const std::string path = folder_.file("large");
  std::ofstream(path) << "x";
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
  EXPECT_EQ(refusal(path), "recipe \"" + path + "\": larger than 100 bytes");
}

// Opening a pipe as others do would wait for ever, and reading a device would never end.
TEST_F(ForeignFiles, WhatIsNoRegularFileIsRefused) {
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(problem(pipe), "is a pipe, and no file");
  std::filesystem::create_symlink(pipe, folder_.file("link"));
  EXPECT_EQ(problem(folder_.file("link")), "is a pipe, and no file");
  for (const char* const device : {"/dev/zero", "/dev/null", "/dev/urandom"}) {
    EXPECT_EQ(problem(device), "is a device, and no file");
  }
  EXPECT_EQ(problem(folder_.path()), "is a folder, and no file");
  EXPECT_EQ(problem(folder_.file("none")), "cannot be read: No such file or directory");
}

TEST_F(ForeignFiles, ErrorsAreOfTheCallersKind) {
  EXPECT_EQ(refusal("/dev/zero"), "recipe \"/dev/zero\": is a device, and no file");
  EXPECT_THROW(read_foreign_file<CheckpointError>("recipe", "/dev/zero", 1), CheckpointError);
}

}  // namespace
}  // namespace penstock
