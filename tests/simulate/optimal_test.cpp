// Nothing is faster than an optimum that a search has proven, and no bound is above it.
#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/simulate/lower_bounds.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "tests/support/golden.h"

namespace penstock::simulate {
namespace {

using schedule::Schedule;
using verify::VerifiedSchedule;

struct Optimum {
  schedule::Sizes sizes;
  std::string placement;
  std::int32_t memory;
  double makespan;
};

// "2 1 loop 4 2 15", and 0 for any memory.
Optimum optimum_of(const std::string& line) {
  const auto words = split(line, ' ');
  const schedule::Sizes sizes{.ranks = std::stoi(words.at(0)),
                              .stages_per_rank = std::stoi(words.at(1)),
                              .microbatches = std::stoi(words.at(3))};
  const std::int32_t limit = std::stoi(words.at(4));
  return {.sizes = sizes,
          .placement = words.at(2),
          .memory = limit > 0 ? limit : sizes.microbatches * sizes.stages_per_rank,
          .makespan = std::stod(words.at(5))};
}

bool is_placed(const VerifiedSchedule& verified, const Optimum& optimum) {
  const std::int32_t p = optimum.sizes.ranks;
  for (std::int32_t s = 0; s < verified.schedule().stages; ++s) {
    const bool back = optimum.placement == "v" && s >= p;
    if (verified.rank_of(StageId(s)) != Rank(back ? 2 * p - 1 - s : s % p)) return false;
  }
  return true;
}

bool has_overlapped_pairs(const Schedule& order) {
  return std::ranges::any_of(order.programs, [](const schedule::Program& program) {
    return std::ranges::find(program, true, &schedule::Action::overlaps_next) != program.end();
  });
}

// The training schedules of those sizes and that placement, with split backwards.
std::vector<VerifiedSchedule> candidates(const Optimum& optimum) {
  std::vector<VerifiedSchedule> found;
  for (const schedule::Generator& generator : schedule::registry()) {
    if (!generator.objection(optimum.sizes).empty()) continue;
    const Schedule order = generator.make(optimum.sizes);
    if (order.purpose != schedule::Purpose::Train || has_overlapped_pairs(order)) continue;
    for (const std::int32_t delay : {0, 1, 2, 64}) {
      auto verified = VerifiedSchedule::from(schedule::split_backwards(order, delay));
      if (is_placed(verified, optimum)) found.push_back(std::move(verified));
    }
  }
  return found;
}

TEST(Optima, AreNotBeatenAndNoBoundIsAboveThem) {
  const auto lines = testing_support::golden_lines("optimal_small.txt");
  EXPECT_EQ(lines.size(), 124u);
  int compared = 0;
  int met = 0;
  int bounded = 0;
  for (const std::string& line : lines) {
    SCOPED_TRACE(line);
    const Optimum optimum = optimum_of(line);
    bool is_compared = false;
    bool is_met = false;
    bool is_bounded = false;
    for (const VerifiedSchedule& verified : candidates(optimum)) {
      const auto& peaks = verified.facts().peak_activations;
      if (std::ranges::max(peaks) <= optimum.memory) {
        const double makespan = simulate(verified, {}, Detail::Totals).makespan;
        EXPECT_GE(makespan, optimum.makespan) << grid(verified.schedule());
        is_compared = true;
        is_met = is_met || makespan == optimum.makespan;
      }
      // The optimum holds no more than this one, so that all bounds are about it, too.
      if (std::ranges::min(peaks) < optimum.memory) continue;
      for (const LowerBound& bound : lower_bounds(verified)) {
        EXPECT_LE(bound.makespan, optimum.makespan) << bound.name;
      }
      is_bounded = true;
    }
    EXPECT_TRUE(is_compared || is_bounded);
    compared += is_compared;
    met += is_met;
    bounded += is_bounded;
  }
  EXPECT_EQ(compared, 95);
  EXPECT_EQ(met, 95);
  EXPECT_EQ(bounded, 96);
}

}  // namespace
}  // namespace penstock::simulate
