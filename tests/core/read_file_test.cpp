#include "penstock/core/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

using testing_support::message_of;

class ReadFile : public testing::Test {
 protected:
  std::string refusal(const std::string& path, std::size_t bytes_max = 100) const {
    return message_of([&] { read_file("recipe", path, bytes_max); });
  }

  testing_support::TemporaryFolder folder_;
};

TEST_F(ReadFile, GivesAllBytes) {
  const std::string path = folder_.file("bytes");
  const std::string bytes = std::string("a\0b\r\n", 5) + std::string(200'000, 'x');
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(read_file("recipe", path, bytes.size()), bytes);
  EXPECT_EQ(refusal(path, bytes.size() - 1), "recipe \"" + path + "\": larger than 200004 bytes");
}

TEST_F(ReadFile, EndlessOnesEnd) {
  EXPECT_EQ(refusal("/dev/zero"), "recipe \"/dev/zero\": is a device, which never ends");
  EXPECT_EQ(read_file("recipe", "/dev/null", 100), "");
}

TEST_F(ReadFile, WhatCannotBeReadIsNamed) {
  const std::string missing = folder_.file("missing");
  EXPECT_EQ(refusal(missing),
            "recipe \"" + missing + "\": cannot be read: No such file or directory");
  EXPECT_EQ(refusal("/"), "recipe \"/\": cannot be read: Is a directory");
}

// Opening it as others do would wait for ever.
TEST_F(ReadFile, APipeWithoutAWriterIsNotWaitedFor) {
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refusal(pipe), "recipe \"" + pipe + "\": cannot be read: a pipe that nobody writes to");
}

}  // namespace
}  // namespace penstock
