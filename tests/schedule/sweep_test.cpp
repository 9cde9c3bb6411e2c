// Every generator at every small size that it takes: proved, priced, and printed and parsed.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "penstock/core/error.h"
#include "penstock/schedule/deepspeed/conversion.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/json.h"
#include "penstock/schedule/passes/passes.h"
#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"
#include "tests/support/generated.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::for_each_generated;
using testing_support::for_each_size_of;
using verify::VerifiedSchedule;

// At one unit of time per F, I and W of a stage.
double makespan_of(const Schedule& order) {
  return simulate::simulate(VerifiedSchedule::from(order)).makespan;
}

TEST(Sweep, VerifiesWithAndWithoutMessages) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    ASSERT_EQ(verify::verify(order).diagnostics.size(), 0u) << title(order);
    const Schedule lowered = lower_communication(order);
    for (const auto channels :
         {verify::Channels::Tagged, verify::Channels::DirFifo, verify::Channels::PairFifo}) {
      const auto verdict = verify::verify(lowered, {.channels = channels});
      ASSERT_TRUE(verdict.diagnostics.empty())
          << title(order) << " " << to_string(verdict.diagnostics[0]);
    }
    ASSERT_EQ(testing_support::compute_only(lowered).programs, order.programs) << title(order);
  });
}

void expect_back_from_csv(const Schedule& schedule, FileFormat format) {
  const Schedule back = parse_csv(to_csv(schedule), schedule.name, format);
  ASSERT_EQ(back, schedule) << title(schedule);
}

void expect_back_from_json(const Schedule& schedule, FileFormat format) {
  const Document back = parse_json(to_json(schedule), "back", format);
  ASSERT_EQ(back.schedule, schedule) << title(schedule);
}

TEST(Sweep, OrdersComeBackFromCsvAndJson) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    expect_back_from_csv(order, FileFormat::ComputeOnly);
    expect_back_from_json(order, FileFormat::ComputeOnly);
  });
}

TEST(Sweep, TimetablesComeBackFromCsv) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Timetable table = align(pack(generator.make(sizes)));
    const Timetable back = parse_timetable(to_csv(table), table.schedule.name);
    ASSERT_EQ(back, table) << title(table.schedule);
  });
}

TEST(Sweep, LoweredProgramsComeBackFromCsvAndJson) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    for (const Schedule& lowered : {lower_communication(order), lower_as_torch(order)}) {
      expect_back_from_csv(lowered, FileFormat::ComputeComms);
      expect_back_from_json(lowered, FileFormat::ComputeComms);
    }
  });
}

bool has_deepspeed_form(std::string_view name, const Sizes& sizes) {
  if (sizes.stages_per_rank > 1) return false;
  return name == "gpipe" || name == "1f1b" || name == "interleaved_1f1b" || name == "looped_bfs" ||
         name == "forward_only";
}

TEST(Sweep, ThoseOfDeepSpeedsFormComeBackFromIt) {
  int compared = 0;
  for_each_generated({}, [&](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    if (!has_deepspeed_form(generator.name, sizes)) {
      ASSERT_THROW(deepspeed::to_stepped(order), ScheduleError) << title(order);
      return;
    }
    const deepspeed::SteppedSchedule stepped = deepspeed::to_stepped(order);
    const auto back = deepspeed::parse_stepped(deepspeed::to_text(stepped), stepped.name);
    ASSERT_TRUE(back.stages == stepped.stages) << title(order);
    ASSERT_EQ(back.microbatches, stepped.microbatches) << title(order);
    const Schedule again = deepspeed::to_schedule(back);
    ASSERT_EQ(testing_support::compute_only(again).programs, order.programs) << title(order);
    ++compared;
  });
  EXPECT_EQ(compared, 4 * 8 * 24 + 137) << "interleaved_1f1b takes 137 of the sizes";
}

TEST(Sweep, PlacesStagesInALoopOrToAndFro) {
  for_each_generated({.microbatches_max = 16}, [](const Generator& generator, const Sizes& sizes) {
    const auto verified = VerifiedSchedule::from(generator.make(sizes));
    const bool folds =
        generator.constraints.starts_with("v = 2") || generator.constraints == "v even";
    for (std::int32_t s = 0; s < verified.schedule().stages; ++s) {
      const bool back = folds && s / sizes.ranks % 2 != 0;
      const std::int32_t rank = back ? sizes.ranks - 1 - s % sizes.ranks : s % sizes.ranks;
      ASSERT_EQ(verified.rank_of(StageId(s)), Rank(rank));
    }
  });
}

// What the registry states, times v, so that a stage's F, I and W take a unit; absent where it
// states nothing, or only a bound.
std::optional<std::int32_t> bubble_of(std::string_view name, const Sizes& sizes) {
  const std::int32_t m = sizes.microbatches;
  const std::int32_t p = sizes.ranks;
  const auto when = [](bool stated, std::int32_t bubble) {
    return stated ? std::optional(bubble) : std::nullopt;
  };
  if (name == "gpipe" || name == "1f1b") return 3 * (p - 1);
  if (name == "interleaved_1f1b") return when(m % p == 0, 3 * (p - 1));
  if (name == "looped_bfs") return when(m >= p, 3 * (p - 1));
  if (name == "zb_h1") return std::max(p - 1, 2 * p - 1 - m);
  if (name == "zb_h2") return when(m >= 2 * p - 1, p - 1);
  if (name == "interleaved_zero_bubble") return when(m % p == 0, p - 1);
  if (name == "zbv") return std::max(p - 1, 4 * p - 2 - 2 * m);
  if (name == "dualpipev") return 2 * (p - 1);
  if (name == "forward_only") return when(m >= p, p - 1);
  if (name == "v_half" || name == "v_min" || name == "hanayo") return {};
  ADD_FAILURE() << "no bubble for " << name;
  return {};
}

TEST(Sweep, MakespanIsTheClosedForm) {
  int compared = 0;
  for_each_generated({}, [&](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    const auto result = simulate::simulate(VerifiedSchedule::from(order));
    const std::int32_t passes = order.purpose == Purpose::Train ? 3 : 1;
    const std::int32_t work = passes * sizes.microbatches * sizes.stages_per_rank;
    for (const double busy : result.busy) ASSERT_EQ(busy, work);
    const auto bubble = bubble_of(generator.name, sizes);
    if (!bubble) return;
    ASSERT_EQ(result.makespan, work + *bubble) << title(order);
    ++compared;
  });
  EXPECT_GT(compared, 2000);
}

// f + b of a rank is 6.
TEST(Sweep, BubbleOfVBlocksIsAtMostItsShareOf1F1B) {
  const auto expect_bubble_at_most = [](std::string_view name, double share) {
    for_each_size_of(find_generator(name), {}, [&](const Generator& generator, const Sizes& sizes) {
      if (sizes.microbatches < sizes.ranks) return;
      const Schedule order = generator.make(sizes);
      const double bubble = makespan_of(order) - 6 * sizes.microbatches;
      ASSERT_LE(bubble, share * 6 * (sizes.ranks - 1) + 1e-9) << title(order);
    });
  };
  expect_bubble_at_most("v_half", 1.0 / 2);
  expect_bubble_at_most("v_min", 2.0 / 3);
}

TEST(Sweep, BubbleOfHanayoIsAtMostItsShareOfTheMakespan) {
  int compared = 0;
  for_each_size_of(find_generator("hanayo"), {.stages_per_rank_max = 6},
                   [&](const Generator& generator, const Sizes& sizes) {
                     if (sizes.microbatches != sizes.ranks) return;
                     const Schedule order = generator.make(sizes);
                     const double makespan = makespan_of(order);
                     const std::int32_t p = sizes.ranks;
                     const std::int32_t v = sizes.stages_per_rank;
                     const double share = (2.0 * p - 2) / (1.5 * p * v + p - 1);
                     ASSERT_LE(makespan - 3 * v * p, share * makespan + 1e-9) << title(order);
                     ++compared;
                   });
  EXPECT_EQ(compared, 8 * 3);
}

TEST(Sweep, HanayoIsNoSlowerThan1F1B) {
  for_each_size_of(
      find_generator("hanayo"), {}, [](const Generator& generator, const Sizes& sizes) {
        const Schedule order = generator.make(sizes);
        const std::int32_t of_1f1b = sizes.microbatches + sizes.ranks - 1;
        ASSERT_LE(makespan_of(order), 3 * sizes.stages_per_rank * of_1f1b) << title(order);
      });
}

TEST(Sweep, FittedZbvIsNoSlowerAndHoldsNoMore) {
  int faster = 0;
  for (std::int32_t ranks = 1; ranks <= 12; ++ranks) {
    for (std::int32_t m = 1; m < 2 * ranks - 1; ++m) {
      Sizes sizes{.ranks = ranks, .stages_per_rank = 2, .microbatches = m};
      const auto published = VerifiedSchedule::from(make_schedule("zbv", sizes));
      sizes.rule = Rule::Fitted;
      const auto fitted = VerifiedSchedule::from(make_schedule("zbv", sizes));
      const double before = simulate::simulate(published).makespan;
      const double after = simulate::simulate(fitted).makespan;
      ASSERT_LE(after, before) << title(fitted.schedule());
      ASSERT_LE(std::ranges::max(fitted.facts().peak_activations),
                std::ranges::max(published.facts().peak_activations))
          << title(fitted.schedule());
      if (before > 6 * m + ranks - 1) {
        ASSERT_LT(after, before) << title(fitted.schedule());
        ++faster;
      }
    }
  }
  EXPECT_GT(faster, 80);
}

TEST(Sweep, FittedZbvIsThePublishedOneWhereItsRuleApplies) {
  for (std::int32_t ranks = 1; ranks <= 8; ++ranks) {
    Sizes sizes{.ranks = ranks, .stages_per_rank = 2, .microbatches = 2 * ranks - 1};
    const Schedule published = make_schedule("zbv", sizes);
    sizes.rule = Rule::Fitted;
    EXPECT_EQ(make_schedule("zbv", sizes).programs, published.programs);
  }
}

std::int32_t peak_of(std::string_view name, const Sizes& sizes, std::int32_t r) {
  const std::int32_t m = sizes.microbatches;
  const std::int32_t p = sizes.ranks;
  const std::int32_t v = sizes.stages_per_rank;
  const std::int32_t n = sizes.microbatch_group.value_or(m / std::max(1, m / p));
  if (name == "gpipe") return m;
  if (name == "1f1b") return std::min(m, p - r);
  if (name == "interleaved_1f1b") return std::min(m * v, (v - 1) * n + 2 * (p - 1 - r) + 1);
  if (name == "looped_bfs") return m * v;
  if (name == "zb_h1") return std::min(m, p);
  if (name == "zb_h2") return std::min(m, 2 * p - 1);
  if (name == "interleaved_zero_bubble") return std::min(m * v, (v - 1) * n + p);
  if (name == "zbv") return std::min({2 * m, 2 * p, m + r + 1});
  if (name == "dualpipev") return 2 * p + 1;
  if (name == "v_half") return 2 * ((p + 2) / 2);
  if (name == "v_min") return 2 * ((p + 4) / 3);
  if (name == "hanayo") return v * std::min(m, p);
  if (name == "forward_only") return 0;
  ADD_FAILURE() << "no peak for " << name;
  return -1;
}

void expect_peaks(const Generator& generator, const Sizes& sizes) {
  const Schedule order = generator.make(sizes);
  const auto verdict = verify::verify(order);
  ASSERT_TRUE(verdict.diagnostics.empty()) << title(order);
  std::vector<std::int32_t> expected;
  for (std::int32_t r = 0; r < sizes.ranks; ++r) {
    expected.push_back(peak_of(generator.name, sizes, r));
  }
  if (generator.peak.starts_with("at most ")) {
    ASSERT_LE(std::ranges::max(verdict.facts.peak_activations), expected[0]) << title(order);
  } else {
    ASSERT_EQ(verdict.facts.peak_activations, expected) << title(order);
  }
}

TEST(Sweep, PeakActivationsAreTheClosedForm) { for_each_generated({}, expect_peaks); }

TEST(Sweep, GroupsOfEverySizeVerifyAndKeepToTheirPeak) {
  int compared = 0;
  for (const char* name : {"interleaved_1f1b", "interleaved_zero_bubble"}) {
    const Generator& generator = find_generator(name);
    for (std::int32_t group = 1; group <= 12; ++group) {
      for (std::int32_t ranks = 1; ranks <= 5; ++ranks) {
        for (std::int32_t m = 1; m <= 16; ++m) {
          const Sizes sizes{
              .ranks = ranks, .stages_per_rank = 3, .microbatches = m, .microbatch_group = group};
          if (!generator.objection(sizes).empty()) continue;
          expect_peaks(generator, sizes);
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 300);
}

}  // namespace
}  // namespace penstock::schedule
