// Where a Progress is, and where an exception has left it.
#include "penstock/runtime/execute/progress.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace penstock::execute {
namespace {

void fail_in(Progress& progress) {
  const Phase phase(progress, "training", Files::Used);
  const WorkMark work(progress, "updating parameters");
  const WaitMark wait(progress, "sharing the loss");
  throw std::runtime_error("enough");
}

TEST(Progress, AnExceptionLeavesItsPositionAndNoMark) {
  Progress progress;
  progress.step = 15;
  EXPECT_THROW(fail_in(progress), std::runtime_error);
  const Position now = progress.position();
  EXPECT_FALSE(now.is_busy());
  EXPECT_FALSE(now.uses_files);
  EXPECT_STREQ(now.phase, "starting");
  const auto failed = position_of_failure();
  ASSERT_TRUE(failed);
  EXPECT_STREQ(failed->doing, "sharing the loss");
  EXPECT_STREQ(failed->phase, "training");
  EXPECT_EQ(failed->step, 15);
}

TEST(Progress, ThePositionOfAFailureOutlivesItsProgressAndWorkBecauseOfIt) {
  try {
    Progress progress;
    fail_in(progress);
  } catch (const std::runtime_error&) {
    Progress other;
    const WorkMark telling(other, "telling the others");
    EXPECT_TRUE(position_of_failure());
  }
  EXPECT_TRUE(position_of_failure());
}

TEST(Progress, ThePositionOfAFailureIsForgottenWhenWorkBegins) {
  Progress progress;
  EXPECT_THROW(fail_in(progress), std::runtime_error);
  const WorkMark work(progress, "updating parameters");
  EXPECT_FALSE(position_of_failure());
}

}  // namespace
}  // namespace penstock::execute
