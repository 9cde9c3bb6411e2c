#include "penstock/launch/hosts/whole_lines.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <string>

#include "penstock/core/file_descriptor.h"

namespace penstock::hosts {
namespace {

// What reached the stream, told by a function that writes.
template <class Writing>
std::string passed_on(const Writing& writing) {
  const FileDescriptor file(::memfd_create("lines", 0));
  Output output(file.get());
  {
    WholeLines lines(output, 2);
    writing(lines);
  }
  output.finish();
  std::array<char, 256> text{};
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  return {text.data(), static_cast<std::size_t>(size)};
}

TEST(WholeLines, AreNotMixed) {
  EXPECT_EQ(passed_on([](WholeLines& lines) {
              lines.write(0, "one");
              lines.write(1, "two");
              lines.write(0, " more");
              lines.write(1, "\nthree");
              lines.write(0, "\n");
            }),
            "two\none more\nthree");
}

TEST(WholeLines, ACarriageReturnEndsOneToo) {
  EXPECT_EQ(passed_on([](WholeLines& lines) {
              lines.write(0, "10 %\r20");
              lines.write(1, "other\n");
            }),
            "10 %\rother\n20");
}

TEST(WholeLines, WhatIsBegunIsPassedOnAtTheEnd) {
  EXPECT_EQ(passed_on([](WholeLines& lines) {
              lines.write(1, "begun");
              lines.end(1);
              lines.write(0, "rest");
            }),
            "begunrest");
}

}  // namespace
}  // namespace penstock::hosts
