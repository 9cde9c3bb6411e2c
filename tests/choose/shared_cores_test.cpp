#include "penstock/plan/choose/shared_cores.h"

#include <gtest/gtest.h>

#include <numeric>

#include "penstock/plan/lower/programs.h"

namespace penstock::choose {
namespace {

// GPipe of two stages and two microbatches: both ranks compute from 1 to 2 and from 5 to 7.
simulate::Simulation gpipe() {
  const verify::VerifiedSchedule schedule =
      lower::training_program({.schedule = "gpipe", .ranks = 2, .microbatches = 2});
  return simulate::simulate(schedule, {.forward = 1.0, .input = 1.0, .weight = 1.0});
}

constexpr Layout kTwoStages{.mesh = {.pipe = 2, .data = 1}};

TEST(SharedCores, CrowdingMakesLongerWhatIsShared) {
  const double apart = time_on_shared_cores(gpipe(), 0.0, kTwoStages, {.cores_per_node = 2});
  const double shared = time_on_shared_cores(gpipe(), 0.0, kTwoStages, {.cores_per_node = 1});
  const Network crowded{.cores_per_node = 1, .crowding = 1.5};
  // What two ranks do at a time, which one core makes as much longer again.
  EXPECT_DOUBLE_EQ(time_on_shared_cores(gpipe(), 0.0, kTwoStages, crowded),
                   shared + 0.5 * 2.0 * (shared - apart));
  const Network enough{.cores_per_node = 2, .crowding = 1.5};
  EXPECT_DOUBLE_EQ(time_on_shared_cores(gpipe(), 0.0, kTwoStages, enough), apart);
}

TEST(SharedCores, RanksThatTakeTurnsTakeTheSumOfTheirWork) {
  const simulate::Simulation step = gpipe();
  EXPECT_DOUBLE_EQ(step.makespan, 9.0);
  const double sum = std::accumulate(step.busy.begin(), step.busy.end(), 0.0);
  EXPECT_DOUBLE_EQ(time_on_shared_cores(step, 0.0, kTwoStages, {.cores_per_node = 1}), sum);
}

TEST(SharedCores, ACoreEachChangesNothing) {
  EXPECT_DOUBLE_EQ(time_on_shared_cores(gpipe(), 0.5, kTwoStages, {.cores_per_node = 2}), 9.5);
}

TEST(SharedCores, ReplicasCountAndAllComputeInTheUpdate) {
  const Layout layout{.mesh = {.pipe = 2, .data = 2}};
  // Two of four ranks compute for 6, all four for 3; then all for the update.
  EXPECT_DOUBLE_EQ(time_on_shared_cores(gpipe(), 1.0, layout, {.cores_per_node = 2}),
                   6.0 + 2.0 * 3.0 + 2.0 * 1.0);
}

TEST(SharedCores, EachNodeHasItsOwn) {
  const Layout layout{.mesh = {.pipe = 2, .data = 2}};
  const Network nodes{.ranks_per_node = 2, .cores_per_node = 1};
  // The two replicas of a stage are on one node: they halve each other's speed all the time.
  EXPECT_DOUBLE_EQ(time_on_shared_cores(gpipe(), 0.0, layout, nodes), 18.0);
}

TEST(SharedCores, AreSharedWhereANodeHasMoreRanks) {
  const Layout layout{.mesh = {.pipe = 2, .data = 2}};
  EXPECT_FALSE(shares_cores(layout, {}));
  EXPECT_FALSE(shares_cores(layout, {.cores_per_node = 4}));
  EXPECT_TRUE(shares_cores(layout, {.cores_per_node = 3}));
  EXPECT_FALSE(shares_cores(layout, {.ranks_per_node = 2, .cores_per_node = 2}));
}

}  // namespace
}  // namespace penstock::choose
