#include "penstock/runtime/execute/step_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "penstock/runtime/execute/progress.h"
#include "tests/support/foreign_device.h"
#include "tests/support/foreign_streams.h"

namespace penstock::execute {
namespace {

using std::chrono::milliseconds;
using testing_support::kForeign;

constexpr std::int64_t kMillisecond = 1'000'000;

// The host gives a kernel of 40 ms and goes on: its marks are apart by what the kernel takes.
TEST(StepClock, OfADeviceHasTheTimesOfWhatTheHostHasGivenIt) {
  const testing_support::LateStreams late({});
  comm::run_ranks(1, [](comm::Communicator& communicator) {
    StepClock clock(c10::Device(kForeign, 0));
    for (int step = 0; step < 2; ++step) {
      const std::int64_t beginning = now_ns();
      clock.begin(now_ns);
      const std::int64_t begun = now_ns();
      const std::int64_t before = clock.mark();
      testing_support::foreign::enqueue(testing_support::foreign::stream(0, 0),
                                        [] { std::this_thread::sleep_for(milliseconds(40)); });
      const std::int64_t after = clock.mark();
      EXPECT_NE(before, after);
      clock.end(communicator);
      EXPECT_GE(clock.ns(after) - clock.ns(before), 40 * kMillisecond);
      // The device's time at begin() is read behind it, so later by less than that took.
      EXPECT_LE(clock.ns(after), now_ns() + (begun - beginning)) << "by the steady clock";
      EXPECT_GE(clock.ns(after), begun);
    }
  });
}

TEST(StepClock, OfAProcessorIsTheHosts) {
  comm::run_ranks(1, [](comm::Communicator& communicator) {
    StepClock clock(at::kCPU);
    std::int64_t now = 5;
    clock.begin([&] { return now; });
    const std::int64_t first = clock.mark();
    now = 8;
    const std::int64_t second = clock.mark();
    clock.end(communicator);
    EXPECT_EQ(clock.ns(first), 5);
    EXPECT_EQ(clock.ns(second), 8);
  });
}

}  // namespace
}  // namespace penstock::execute
