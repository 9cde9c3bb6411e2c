#include "penstock/plan/render/timeline_trace.h"

#include <gtest/gtest.h>

#include "penstock/plan/render/simulated_timeline.h"
#include "tests/support/schedules.h"

namespace penstock::render {
namespace {

Trace trace(const std::vector<std::string>& programs) {
  const auto verified = verify::VerifiedSchedule::from(testing_support::rows(programs));
  return trace_of(simulated_timeline(verified, simulate::simulate(verified)));
}

TEST(TimelineTrace, EveryBarIsAnEventAndAUnitAMillisecond) {
  const Trace both = trace({"0F0,0B0", "1F0,1B0"});
  ASSERT_EQ(both.events.size(), 4u);
  EXPECT_EQ(both.events[1].name, "0B0");
  EXPECT_EQ(both.events[1].process, 0);
  EXPECT_EQ(both.events[1].start_us, 4000);
  EXPECT_EQ(both.events[1].duration_us, 2000);
  using Args = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(both.events[1].args, (Args{{"waited for", "1B0 of rank 1"}}));
  EXPECT_TRUE(both.events[0].args.empty());
  EXPECT_EQ(both.threads[0], "compute");
}

TEST(TimelineTrace, MemoryIsACounterOfItsRank) {
  const Trace both = trace({"0F0,0B0", "1F0,1B0"});
  ASSERT_EQ(both.counters.size(), 4u);
  EXPECT_EQ(both.counters[2].process, 1);
  EXPECT_EQ(both.counters[2].time_us, 1000);
  EXPECT_EQ(both.counters[2].value, 1);
  EXPECT_EQ(both.counters[3].value, 0);
}

}  // namespace
}  // namespace penstock::render
