#include "penstock/launch/restarts.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"

namespace penstock::launch {
namespace {

constexpr int kLost = static_cast<int>(ExitCode::PeerLost);

TEST(Restarts, AreSoManyInARowWithLongerPauses) {
  Restarts restarts(9, 0);
  for (const double pause : {0, 1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(restarts.after_failure(kLost, 0), pause);
  }
  EXPECT_EQ(restarts.after_failure(kLost, 0), std::nullopt);
  EXPECT_EQ(restarts.in_a_row(), 9);
}

TEST(Restarts, BeginAnewWithANewCheckpoint) {
  Restarts restarts(1, 10);
  EXPECT_EQ(restarts.after_failure(kLost, 10), 0);
  EXPECT_EQ(restarts.after_failure(kLost, 20), 0);
  EXPECT_EQ(restarts.after_failure(kLost, 20), std::nullopt);
}

// A run that passes over a damaged checkpoint saves at earlier steps than that had.
TEST(Restarts, BeginAnewWithANewCheckpointOfAnEarlierStep) {
  Restarts restarts(1, 10);
  EXPECT_EQ(restarts.after_failure(kLost, 10), 0);
  EXPECT_EQ(restarts.after_failure(kLost, 6), 0);
  EXPECT_EQ(restarts.after_failure(kLost, 6), std::nullopt);
}

TEST(Restarts, AreForWhatMayPass) {
  for (const ExitCode code : {ExitCode::Failure, ExitCode::Usage, ExitCode::Checkpoint,
                              ExitCode::Numerics, ExitCode::Preempted, ExitCode::Interrupted}) {
    EXPECT_EQ(Restarts(3, 0).after_failure(static_cast<int>(code), 0), std::nullopt);
  }
  EXPECT_EQ(Restarts(3, 0).after_failure(static_cast<int>(ExitCode::Hang), 0), 0);
  EXPECT_EQ(Restarts(0, 0).after_failure(kLost, 0), std::nullopt);
}

}  // namespace
}  // namespace penstock::launch
