#include "penstock/runtime/execute/device_events.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "penstock/core/error.h"
#include "tests/support/foreign_device.h"
#include "tests/support/message_of.h"

namespace penstock::execute {
namespace {

using testing_support::kForeign;
using testing_support::set_late_events;

class DeviceEventsTest : public testing::Test {
 protected:
  void TearDown() override { set_late_events({}); }
};

TEST_F(DeviceEventsTest, AreProgressOneByOne) {
  std::atomic<int> asked = 0;
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Progress progress;
    DeviceEvents events(c10::Device(kForeign, 0));
    for (int i = 0; i < 3; ++i) events.mark(1);
    set_late_events([&] { return ++asked % 5 == 0; });
    events.await(progress, communicator);
    EXPECT_EQ(progress.counter, 3);
    EXPECT_EQ(asked, 15);
    events.await(progress, communicator);
    EXPECT_EQ(progress.counter, 3) << "of marks that were awaited";
  });
}

TEST_F(DeviceEventsTest, OfAnotherStepAreForgotten) {
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Progress progress;
    DeviceEvents events(c10::Device(kForeign, 0));
    for (int i = 0; i < 3; ++i) events.mark(1);
    events.mark(2);
    events.await(progress, communicator);
    EXPECT_EQ(progress.counter, 1);
  });
}

// A device that does not come to an end ends no wait; what another rank says does.
TEST_F(DeviceEventsTest, ThatNeverEndAreAwaitedUntilTheRanksAreInterrupted) {
  set_late_events([] { return false; });
  const std::string told = testing_support::message_of([] {
    comm::run_ranks(2, [](comm::Communicator& communicator) {
      if (communicator.rank().value == 1) {
        communicator.fail("rank 1 failed: it had enough");
        return;
      }
      Progress progress;
      DeviceEvents events(c10::Device(kForeign, 0));
      events.mark(1);
      events.await(progress, communicator);
    });
  });
  EXPECT_NE(told.find("it had enough"), std::string::npos) << told;
}

TEST_F(DeviceEventsTest, OfAProcessorAreNone) {
  set_late_events([] { return false; });
  comm::run_ranks(1, [](comm::Communicator& communicator) {
    Progress progress;
    DeviceEvents events(at::kCPU);
    events.mark(1);
    events.await(progress, communicator);
    EXPECT_EQ(progress.counter, 0);
  });
}

}  // namespace
}  // namespace penstock::execute
