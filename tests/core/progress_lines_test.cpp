#include "penstock/core/progress_lines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

namespace penstock {
namespace {

// What is told of work on 3 MiB, of which so many bytes are done one after the other.
std::string told(std::initializer_list<std::uint64_t> done, std::chrono::nanoseconds every) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  {
    Output output(ends[1]);
    ProgressLines lines(output, "reading x", std::uint64_t{3} << 20, every);
    for (const std::uint64_t bytes : done) lines.add(bytes);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t count = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

TEST(ProgressLines, SayHowMuchIsDoneAndNeverMoreThanAll) {
  EXPECT_EQ(told({1 << 20, 1 << 20, 5 << 20}, std::chrono::nanoseconds(0)),
            "penstock: reading x: 1.0 MiB of 3.0 MiB\n"
            "penstock: reading x: 2.0 MiB of 3.0 MiB\n"
            "penstock: reading x: 3.0 MiB of 3.0 MiB\n");
}

TEST(ProgressLines, AreNotOfShortWork) {
  EXPECT_EQ(told({1 << 20, 2 << 20}, std::chrono::hours(1)), "");
}

}  // namespace
}  // namespace penstock
