// A pass's time, with messages beside its kernels.
#include "penstock/plan/devices/pass.h"

#include <gtest/gtest.h>

namespace penstock::devices {
namespace {

using Kind = PassStep::Kind;

constexpr DeviceModel kDevice{
    .memory_bytes_per_s = 1, .memory_share = 1, .kernel_s = 0, .launch_s = 0.5};
constexpr PassLink kLink{.latency_s = 1, .bytes_per_s = 2};

PassStep kernel(std::int64_t bytes) { return {.kernels = {{{KernelKind::Other, bytes}, 1}}}; }
PassStep begin(std::int64_t bytes) { return {.kind = Kind::Begin, .bytes = bytes}; }
PassStep await(std::int64_t number) { return {.kind = Kind::Await, .number = number}; }

TEST(Pass, WaitsForWhatNothingHides) {
  EXPECT_DOUBLE_EQ(seconds_of({kernel(10), begin(8), await(0), kernel(5)}, kDevice, kLink),
                   10 + 4 + 1 + 5);
}

TEST(Pass, KernelsHideWhatTravelsBesideThem) {
  EXPECT_DOUBLE_EQ(seconds_of({begin(8), kernel(3), await(0)}, kDevice, kLink), 5);
  EXPECT_DOUBLE_EQ(seconds_of({begin(8), kernel(7), await(0)}, kDevice, kLink), 7);
}

TEST(Pass, MessagesShareTheLink) {
  EXPECT_DOUBLE_EQ(seconds_of({begin(8), begin(8), await(0), kernel(1), await(1)}, kDevice, kLink),
                   9);
}

TEST(Pass, TakesAtLeastItsHostsTime) {
  EXPECT_DOUBLE_EQ(seconds_of({{.kernels = {{{KernelKind::Other, 0}, 100}}}}, kDevice, kLink), 50);
}

}  // namespace
}  // namespace penstock::devices
