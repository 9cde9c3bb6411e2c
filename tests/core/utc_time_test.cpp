#include "penstock/core/utc_time.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

TEST(UtcTime, IsWrittenWithMilliseconds) {
  EXPECT_EQ(utc_text(system_clock::time_point()), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(system_clock::time_point(milliseconds(1767323045678))),
            "2026-01-02T03:04:05.678Z");
}

TEST(UtcTime, BeforeTheEpochMillisecondsCountForwardsToo) {
  EXPECT_EQ(utc_text(system_clock::time_point(milliseconds(-1))), "1969-12-31T23:59:59.999Z");
}

}  // namespace
}  // namespace penstock
