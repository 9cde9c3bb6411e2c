#include "penstock/core/progress_lines.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace penstock {
namespace {

using std::chrono::milliseconds;

// What lines say, for who waits for so many of them.
class Told {
 public:
  ProgressLines::Write write() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
      changed_.notify_all();
    };
  }
  std::vector<std::string> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return lines_.size() >= count; });
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

TEST(ProgressLines, TellOfAPartThatIsNotOver) {
  Told told;
  ProgressLines lines(told.write(), milliseconds(1));
  lines.at("reading x");
  EXPECT_EQ(told.wait_for(1), std::vector<std::string>{"penstock: reading x"});
}

TEST(ProgressLines, SayNothingTwiceInARow) {
  Told told;
  ProgressLines lines(told.write(), milliseconds(1));
  lines.at("a");
  told.wait_for(1);
  lines.at("a");
  lines.at("reading", 3, 9, "files");
  const std::vector<std::string> all = {"penstock: a", "penstock: reading: 3 of 9 files"};
  EXPECT_EQ(told.wait_for(2), all);
}

TEST(ProgressLines, AreNotOfShortWork) {
  Told told;
  {
    ProgressLines lines(told.write(), std::chrono::hours(1));
    lines.at("reading x");
  }
  EXPECT_TRUE(told.wait_for(0).empty());
}

TEST(ByteProgress, IsNeverMoreThanAll) {
  constexpr std::uint64_t kMebi = 1 << 20;
  ByteProgress progress("reading x", 3 * kMebi);
  progress.add(kMebi);
  EXPECT_EQ(progress.text(), "reading x: 1.0 MiB of 3.0 MiB");
  progress.add(5 * kMebi);
  EXPECT_EQ(progress.text(), "reading x: 3.0 MiB of 3.0 MiB");
}

}  // namespace
}  // namespace penstock
