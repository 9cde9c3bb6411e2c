// Orders for stages that stay: as fast as the search's own, each rank in its own memory.
#include "penstock/plan/search/reorder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/plan/lower/programs.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/schedules.h"

namespace penstock::search {
namespace {

verify::VerifiedSchedule made(const char* name, std::int32_t ranks, std::int32_t microbatches) {
  return lower::training_program({.schedule = name, .ranks = ranks, .microbatches = microbatches});
}

std::vector<double> peaks_of(const verify::VerifiedSchedule& schedule) {
  const auto& peaks = schedule.facts().peak_activations;
  return {peaks.begin(), peaks.end()};
}

TEST(Reorder, IsAsFastAsASearchWithTheSamePlacement) {
  const simulate::Costs costs{.forward = 1, .input = 1.2, .weight = 0.8, .latency = 0.05};
  const Result searched = search({.ranks = 4,
                                  .microbatches = 8,
                                  .placements = {Placement::Loop},
                                  .costs = costs,
                                  .memory_max = 8},
                                 {.rounds = 3});
  const auto gpipe = made("gpipe", 4, 8);
  const Reordered found =
      reorder({.schedule = gpipe, .costs = costs, .memory_max = peaks_of(gpipe)}, {.rounds = 3});
  EXPECT_NEAR(found.simulation.makespan, searched.simulation.makespan, 0.05);
  EXPECT_GE(found.simulation.makespan, found.bound.makespan - 1e-9);
}

TEST(Reorder, EachRankKeepsToItsOwnMemory) {
  for (const char* name : {"1f1b", "zbv", "interleaved_1f1b"}) {
    const auto now = made(name, 4, 8);
    const simulate::Costs costs{.forward = 1, .input = 1, .weight = 1};
    const Reordered found =
        reorder({.schedule = now, .costs = costs, .memory_max = peaks_of(now)}, {.rounds = 2});
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_LE(found.schedule.facts().peak_activations[rank], now.facts().peak_activations[rank])
          << name << " rank " << rank;
    }
    EXPECT_LE(found.simulation.makespan, simulate::simulate(now, costs).makespan) << name;
    for (std::int32_t s = 0; s < now.schedule().stages; ++s) {
      EXPECT_EQ(found.schedule.rank_of(StageId(s)), now.rank_of(StageId(s))) << name;
    }
  }
}

TEST(Reorder, RefusesSizesThatItCannotTake) {
  EXPECT_EQ(objection_to_reorder(made("1f1b", 2, 4)), std::nullopt);
  const auto uneven =
      verify::VerifiedSchedule::from(testing_support::rows({"0F0,2F0,2B0,0B0", "1F0,1B0"}));
  EXPECT_EQ(objection_to_reorder(uneven), "its 3 stages are not as many on each of 2 ranks");
}

}  // namespace
}  // namespace penstock::search
