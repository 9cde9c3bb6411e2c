// A reader that stopped reading stopped the program with it.  Output never waits: what is too much
// is left out, and how much that was is told where it would have been.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "penstock/core/output.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

class SlowReader : public testing::Test {
 protected:
  SlowReader() { EXPECT_EQ(::pipe2(ends_, O_CLOEXEC), 0); }
  ~SlowReader() override {
    for (const int end : ends_) {
      if (end >= 0) ::close(end);
    }
  }

  void close(int end) {
    ::close(ends_[end]);
    ends_[end] = -1;
  }

  std::string read_all() {
    std::string text;
    char block[65536];
    while (true) {
      const ssize_t count = ::read(ends_[0], block, sizeof block);
      if (count <= 0) return text;
      text.append(block, static_cast<std::size_t>(count));
    }
  }

  int ends_[2] = {-1, -1};
};

TEST_F(SlowReader, IsNotWaitedForAndHearsHowManyLinesAreMissing) {
  constexpr int kLines = 40'000;
  const std::string filler(90, '.');
  std::string text;
  std::thread reader;
  {
    Output output(ends_[1]);
    const auto start = std::chrono::steady_clock::now();
    for (int line = 0; line < kLines; ++line) output.write(str(line, filler, "\n"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    reader = std::thread([&] { text = read_all(); });
    // All that waited is read before there is room for more.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    output.write("the end\n");
  }
  close(1);
  reader.join();
  // Every line is there, in its order, or among those that a note counts.
  const std::string note = "penstock: output was not taken in time: ";
  std::vector<std::string> lines = split(text, '\n');
  ASSERT_GT(lines.size(), 4u);
  EXPECT_EQ(lines[lines.size() - 2], "the end");
  lines.resize(lines.size() - 2);
  std::int64_t next = 0, left_out = 0;
  for (const std::string& line : lines) {
    if (!line.starts_with(note)) {
      ASSERT_EQ(line, str(next, filler));
      ++next;
      continue;
    }
    const std::string count = line.substr(note.size(), line.find(' ', note.size()) - note.size());
    EXPECT_EQ(line, str(note, count, " lines are left out here"));
    next += parse_integer(count).value_or(0);
    left_out += parse_integer(count).value_or(0);
  }
  EXPECT_EQ(next, kLines);
  EXPECT_GT(left_out, kLines / 2);
}

TEST_F(SlowReader, WhoIsGoneEndsNothing) {
  close(0);
  Output output(ends_[1]);
  for (int i = 0; i < 100; ++i) output.write("a line\n");
}

TEST_F(SlowReader, AStreamHandsOnWhatIsFlushed) {
  {
    Output output(ends_[1]);
    OutputStream stream(output);
    stream << "rank " << 3 << std::endl << "and more";
  }
  close(1);
  EXPECT_EQ(read_all(), "rank 3\nand more");
}

}  // namespace
}  // namespace penstock
