#include "penstock/core/new_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

std::string bytes_of_every_kind(std::size_t count) {
  std::string bytes(count, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

void write(const std::string& path, const std::string& bytes, std::size_t portion) {
  NewFile file(path, path);
  file.expect(bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += portion) {
    file.write(std::string_view(bytes).substr(at, portion));
  }
  file.finish();
}

// Of no bytes, of less than a block, of blocks and a rest; with portions that fit nothing.
TEST(NewFile, HasTheBytesHoweverManyComeAtOnce) {
  const testing_support::TemporaryFolder folder;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1000}, std::size_t{33} << 20, (std::size_t{40} << 20) + 4095}) {
    const std::string bytes = bytes_of_every_kind(size);
    for (const std::size_t portion : {std::size_t{1} << 20, std::size_t{3'000'001}}) {
      const std::string path = folder.path() + "/" + std::to_string(portion);
      write(path, bytes, portion);
      EXPECT_TRUE(read_file("file", path, std::size_t{1} << 30) == bytes) << size;
      std::filesystem::remove(path);
    }
  }
}

TEST(NewFile, FailsOnceWhereAFailureIsAskedFor) {
  const testing_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  fail_next_write(ENOSPC);
  EXPECT_THROW(write(path, "bytes", 5), Error);
  EXPECT_FALSE(std::filesystem::exists(path));
  write(path, "bytes", 5);
  EXPECT_EQ(read_file("file", path, 5), "bytes");
}

}  // namespace
}  // namespace penstock
