// No schedule beats the bounds, and some schedules meet them.
#include "penstock/plan/simulate/lower_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"
#include "tests/support/schedules.h"

namespace penstock::simulate {
namespace {

using testing_support::Random;
using testing_support::rows;
using verify::VerifiedSchedule;

double bound(const schedule::Schedule& schedule, std::string_view name, const Costs& costs = {}) {
  const auto bounds = lower_bounds(VerifiedSchedule::from(schedule), costs);
  const auto found = std::ranges::find(bounds, name, &LowerBound::name);
  EXPECT_NE(found, bounds.end()) << name;
  return found->makespan;
}

double makespan(const schedule::Schedule& schedule, const Costs& costs = {}) {
  return simulate(VerifiedSchedule::from(schedule), costs, Detail::Totals).makespan;
}

TEST(LowerBounds, AreMetByTheSchedulesThatAreKnownToBeOptimal) {
  const schedule::Sizes sizes{.ranks = 4, .microbatches = 8};
  const schedule::Sizes chunks{.ranks = 4, .stages_per_rank = 2, .microbatches = 8};
  for (const auto& schedule :
       {schedule::make_schedule("gpipe", sizes), schedule::make_schedule("1f1b", sizes),
        schedule::make_schedule("interleaved_1f1b", chunks),
        schedule::make_schedule("zb_h1", sizes),
        schedule::make_schedule("interleaved_zero_bubble", chunks),
        schedule::make_schedule("zbv", chunks)}) {
    EXPECT_EQ(bound(schedule, "pipe"), makespan(schedule)) << title(schedule);
  }
}

// m(f + b) + (p - 1)(f + b) where backwards are whole; m(f + i + w) + (p - 1)f where they are
// split.
TEST(LowerBounds, OfThePipeHaveTheirClosedForm) {
  const Costs costs{.forward = 1, .input = 1.5, .weight = 0.75};
  EXPECT_EQ(bound(schedule::make_schedule("1f1b", {.ranks = 4, .microbatches = 8}), "pipe", costs),
            8 * 3.25 + 3 * 3.25);
  EXPECT_EQ(bound(schedule::make_schedule("zb_h1", {.ranks = 4, .microbatches = 8}), "pipe", costs),
            8 * 3.25 + 3);
  EXPECT_EQ(bound(schedule::make_schedule("forward_only", {.ranks = 4, .microbatches = 8}), "pipe",
                  costs),
            8 + 3);
}

TEST(LowerBounds, OfWorkAndPath) {
  const Costs costs{.forward = std::vector<double>{1, 4}, .latency = 0.5};
  const auto order = schedule::make_schedule("1f1b", {.ranks = 2, .microbatches = 3});
  EXPECT_EQ(bound(order, "work", costs), 3 * 6);
  EXPECT_EQ(bound(order, "path", costs), 1 + 0.5 + 4 + 2 + 0.5 + 2);
  EXPECT_EQ(bound(rows({"0F0,0I0,0W0", "1F0,1I0,1W0"}), "path"), 5) << "the W of stage 1 is beside";
}

// One microbatch at a time: nothing overlaps.
TEST(LowerBounds, OfMemoryIsMetWhereARankHoldsOneActivation) {
  const auto order = rows({"0F0,0B0,0F1,0B1,0F2,0B2", "1F0,1B0,1F1,1B1,1F2,1B2"});
  EXPECT_EQ(bound(order, "memory"), 3 * (2 + 4));
  EXPECT_EQ(makespan(order), 18);
}

// (p f + (p - 1) i + 2(p - 1) c) before the first gradient, and all but M forwards behind it.
TEST(LowerBounds, OfTheWarmUpHasItsClosedForm) {
  const Costs costs{.latency = 0.25};
  const auto order = schedule::make_schedule("zb_h1", {.ranks = 4, .microbatches = 8});
  EXPECT_EQ(bound(order, "warm-up", costs), 4 + 3 + 6 * 0.25 + 8 * 3 - 4);
}

TEST(LowerBounds, CountTheOptimizer) {
  const auto order = schedule::make_schedule("1f1b", {.ranks = 2, .microbatches = 3});
  for (const LowerBound& each : lower_bounds(VerifiedSchedule::from(order), {.optimizer = 100})) {
    EXPECT_GE(each.makespan, 100) << each.name;
  }
}

TEST(LowerBounds, AreNotBeatenByAnySchedule) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  int met = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const schedule::Generator& generator = random.one_of(schedule::registry());
    const schedule::Sizes sizes{.ranks = random.between(1, 5),
                                .stages_per_rank = random.between(1, 3),
                                .microbatches = random.between(1, 12)};
    const bool generated = random.chance(0.5);
    if (generated && !generator.objection(sizes).empty()) continue;
    const auto schedule =
        generated ? generator.make(sizes)
                  : testing_support::random_order(random, {.overlap = 0.3, .split = 0.3});
    const auto per_stage = [&](std::vector<double> from) {
      std::vector<double> values;
      for (std::int32_t s = 0; s < schedule.stages; ++s) values.push_back(random.one_of(from));
      return PerStage(values);
    };
    const Costs costs{.forward = per_stage({0.5, 1, 2}),
                      .input = per_stage({0.5, 1, 2}),
                      .weight = per_stage({0.25, 1, 2}),
                      .overlap = random.one_of<double>({0.5, 1, 1.25}),
                      .latency = random.one_of<double>({0, 0.25, 2}),
                      .message = per_stage({1, 2}),
                      .bandwidth = random.one_of<double>({1, 8}),
                      .activation = per_stage({0, 1, 2}),
                      .keep = random.one_of<double>({0, 0.5, 1})};
    const double best = makespan(schedule, costs);
    for (const LowerBound& each : lower_bounds(VerifiedSchedule::from(schedule), costs)) {
      ASSERT_LE(each.makespan, best) << each.name << "\n" << grid(schedule);
      met += each.makespan == best;
    }
  }
  EXPECT_GT(met, 50);
}

}  // namespace
}  // namespace penstock::simulate
