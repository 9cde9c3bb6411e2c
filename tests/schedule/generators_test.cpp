// What the generators write: grids to read, and laws at every small size.
#include "penstock/schedule/generators/generators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "penstock/core/text.h"
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

TEST(GPipe, TwoRanksThreeMicrobatches) {
  EXPECT_EQ(grid(gpipe({.ranks = 2, .microbatches = 3})),
            "rank 0: 0F0 0F1 0F2 0B0 0B1 0B2\n"
            "rank 1: 1F0 1F1 1F2 1B0 1B1 1B2\n");
}

TEST(OneFOneB, ThreeRanksFourMicrobatches) {
  EXPECT_EQ(grid(one_f_one_b({.ranks = 3, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "rank 1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "rank 2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
}

TEST(OneFOneB, WarmupDepthIsStagesMinusRank) {
  for (std::int32_t ranks = 1; ranks <= 8; ++ranks) {
    for (std::int32_t microbatches = 1; microbatches <= 24; ++microbatches) {
      const Schedule order = one_f_one_b({.ranks = ranks, .microbatches = microbatches});
      for (std::int32_t r = 0; r < ranks; ++r) {
        const Program& program = order.programs[static_cast<std::size_t>(r)];
        const auto first_backward = std::ranges::find(program, Op::Backward, &Action::op);
        EXPECT_EQ(first_backward - program.begin(), std::min(microbatches, ranks - r))
            << title(order) << " rank " << r;
      }
    }
  }
}

TEST(Interleaved1F1B, TwoRanksTwoStagesEach) {
  EXPECT_EQ(grid(interleaved_1f1b({.ranks = 2, .stages_per_rank = 2, .microbatches = 2})),
            "rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n"
            "rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1\n");
}

TEST(Interleaved1F1B, ALastGroupMayBeSmaller) {
  const Schedule order = interleaved_1f1b(
      {.ranks = 2, .stages_per_rank = 2, .microbatches = 5, .microbatch_group = 3});
  EXPECT_EQ(grid(order),
            "rank 0: 0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 "
            "0B4\n"
            "rank 1: 1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 "
            "1B4\n");
}

TEST(Interleaved1F1B, OfOneStagePerRankHasTheBubbleOf1F1B) {
  const Sizes sizes{.ranks = 4, .microbatches = 8};
  const auto makespan = [](Schedule order) {
    return simulate::simulate(VerifiedSchedule::from(std::move(order))).makespan;
  };
  EXPECT_EQ(makespan(interleaved_1f1b(sizes)), makespan(one_f_one_b(sizes)));
}

TEST(LoopedBfs, BackwardIsTheReverse) {
  EXPECT_EQ(grid(looped_bfs({.ranks = 2, .stages_per_rank = 2, .microbatches = 2})),
            "rank 0: 0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0\n"
            "rank 1: 1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0\n");
}

TEST(ZeroBubble, H1DelaysWByTheRank) {
  EXPECT_EQ(grid(zb_h1({.ranks = 3, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3\n"
            "rank 1: 1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3\n"
            "rank 2: 2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3\n");
}

TEST(ZeroBubble, H2HasTwiceTheDepth) {
  EXPECT_EQ(grid(zb_h2({.ranks = 2, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3\n"
            "rank 1: 1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3\n");
}

TEST(ZeroBubble, InterleavedOverOneStageIsH1) {
  for_each_size_of(find_generator("interleaved_zero_bubble"), {.stages_per_rank_max = 1},
                   [](const Generator&, const Sizes& sizes) {
                     EXPECT_EQ(interleaved_zero_bubble(sizes).programs, zb_h1(sizes).programs);
                   });
}

TEST(Zbv, TwoRanksThreeMicrobatches) {
  EXPECT_EQ(grid(zbv({.ranks = 2, .stages_per_rank = 2, .microbatches = 3})),
            "rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2\n"
            "rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2\n");
}

TEST(DualPipeV, OverlapsForwardsWithBackwards) {
  EXPECT_EQ(grid(dualpipev({.ranks = 2, .stages_per_rank = 2, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1)OVERLAP_F_B (3F2;0B0)OVERLAP_F_B 3B2 "
            "(3F3;0B1)OVERLAP_F_B 3B3 0I2 0W2 0I3 0W3\n"
            "rank 1: 1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0)OVERLAP_F_B (1F3;2B1)OVERLAP_F_B "
            "(2F3;1B1)OVERLAP_F_B 2B2 1B2 2I3 1I3 2W3 1W3\n");
}

// In stage units: f + b of a rank is 6.
TEST(VBlocks, BubbleIsAtMostItsShareOf1F1B) {
  const auto expect_bubble_at_most = [](std::string_view name, double share) {
    for_each_size_of(find_generator(name), {}, [&](const Generator& generator, const Sizes& sizes) {
      if (sizes.microbatches < sizes.ranks) return;
      const auto verified = VerifiedSchedule::from(generator.make(sizes));
      const double bubble = simulate::simulate(verified).makespan - 6 * sizes.microbatches;
      EXPECT_LE(bubble, share * 6 * (sizes.ranks - 1) + 1e-9) << title(verified.schedule());
    });
  };
  expect_bubble_at_most("v_half", 1.0 / 2);
  expect_bubble_at_most("v_min", 2.0 / 3);
}

TEST(ForwardOnly, StagesGoRoundTheRanks) {
  const Schedule order = forward_only({.ranks = 2, .stages_per_rank = 2, .microbatches = 2});
  EXPECT_EQ(grid(order),
            "rank 0: 0F0 0F1 2F0 2F1\n"
            "rank 1: 1F0 1F1 3F0 3F1\n");
  EXPECT_EQ(order.purpose, Purpose::Forward);
}

TEST(Generators, VerifyCleanAtEverySizeWithAndWithoutMessages) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    ASSERT_EQ(verify::verify(order).diagnostics.size(), 0u) << title(order);
    const Schedule lowered = lower_communication(order);
    ASSERT_EQ(verify::verify(lowered).diagnostics.size(), 0u) << title(order);
    ASSERT_EQ(testing_support::compute_only(lowered).programs, order.programs) << title(order);
  });
}

TEST(Generators, ComeBackFromTheirTextAtEverySize) {
  for_each_generated({}, [](const Generator& generator, const Sizes& sizes) {
    const Schedule order = generator.make(sizes);
    const Schedule back = parse_csv(to_csv(order), "back");
    ASSERT_EQ(back.programs, order.programs) << title(order);
    ASSERT_EQ(back.stages, order.stages) << title(order);
    ASSERT_EQ(back.microbatches, order.microbatches) << title(order);
    ASSERT_EQ(back.purpose, order.purpose) << title(order);
  });
}

// The bubble at one unit of time per F, I and W of a stage: what the registry states, times v.
std::optional<std::int32_t> bubble_of(std::string_view name, const Sizes& sizes) {
  const std::int32_t m = sizes.microbatches;
  const std::int32_t p = sizes.ranks;
  const auto when = [](bool stated, std::int32_t bubble) {
    return stated ? std::optional(bubble) : std::nullopt;
  };
  if (name == "gpipe" || name == "1f1b") return 3 * (p - 1);
  if (name == "interleaved_1f1b") return when(m % p == 0, 3 * (p - 1));
  if (name == "looped_bfs") return when(m >= p, 3 * (p - 1));
  if (name == "zb_h1") return when(m >= p, p - 1);
  if (name == "zb_h2") return when(m >= 2 * p - 1, p - 1);
  if (name == "interleaved_zero_bubble") return when(m % p == 0, p - 1);
  if (name == "zbv") return when(m >= 2 * p - 1, p - 1);
  if (name == "dualpipev") return 2 * (p - 1);
  if (name == "v_half" || name == "v_min") return {};  // Bounded: see VBlocks.
  if (name == "forward_only") return when(m >= p, p - 1);
  ADD_FAILURE() << "no bubble for " << name;
  return {};
}

TEST(Generators, MakespanIsTheClosedForm) {
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
    ASSERT_LE(*std::ranges::max_element(verdict.facts.peak_activations), expected[0])
        << title(order);
  } else {
    ASSERT_EQ(verdict.facts.peak_activations, expected) << title(order);
  }
}

TEST(Generators, PeakActivationsAreTheClosedForm) { for_each_generated({}, expect_peaks); }

TEST(Generators, GroupsOfEverySizeVerifyAndKeepToTheirPeak) {
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

TEST(Generators, PlaceStagesInALoopOrToAndFro) {
  for_each_generated({.microbatches_max = 16}, [](const Generator& generator, const Sizes& sizes) {
    const auto verified = VerifiedSchedule::from(generator.make(sizes));
    const bool folds = generator.constraints.starts_with("v = 2");
    for (std::int32_t s = 0; s < verified.schedule().stages; ++s) {
      const bool back = folds && s >= sizes.ranks;
      const std::int32_t rank = back ? 2 * sizes.ranks - 1 - s : s % sizes.ranks;
      ASSERT_EQ(verified.rank_of(StageId(s)), Rank(rank));
    }
  });
}

// makespan and span bubble in percent at f = i = w = 1 per rank.
TEST(Generators, CostWhatTheLiteratureSays) {
  struct Row {
    const char* name;
    std::int32_t stages_per_rank;
    double makespan_4x8, span_bubble_4x8, makespan_8x16, span_bubble_8x16;
  };
  const Row rows[] = {{"1f1b", 1, 33, 27.3, 69, 30.4},
                      {"interleaved_1f1b", 2, 28.5, 15.8, 58.5, 17.9},
                      {"interleaved_1f1b", 4, 26.25, 8.6, 53.25, 9.9},
                      {"zb_h1", 1, 27, 11.1, 55, 12.7},
                      {"zb_h2", 1, 27, 0, 55, 0},
                      {"interleaved_zero_bubble", 2, 25.5, 5.9, 51.5, 6.8},
                      {"interleaved_zero_bubble", 4, 24.75, 3.0, 49.75, 3.5},
                      {"zbv", 2, 25.5, 0, 51.5, 0},
                      {"dualpipev", 2, 27, 11.1, 55, 12.7},
                      {"v_min", 2, 29.5, 18.6, 61.5, 22.0},
                      {"looped_bfs", 2, 28.5, 15.8, 58.5, 17.9}};
  for (const Row& row : rows) {
    for (const std::int32_t ranks : {4, 8}) {
      const double cost = 1.0 / row.stages_per_rank;
      const Schedule order = make_schedule(
          row.name,
          {.ranks = ranks, .stages_per_rank = row.stages_per_rank, .microbatches = 2 * ranks});
      const auto result = simulate::simulate(VerifiedSchedule::from(order),
                                             {.forward = cost, .input = cost, .weight = cost});
      const double span = *std::ranges::max_element(result.span);
      const double bubble = 100 * (1 - 6.0 * ranks / span);
      EXPECT_EQ(result.makespan, ranks == 4 ? row.makespan_4x8 : row.makespan_8x16) << row.name;
      EXPECT_NEAR(bubble, ranks == 4 ? row.span_bubble_4x8 : row.span_bubble_8x16, 0.05)
          << row.name << " " << ranks;
    }
  }
}

}  // namespace
}  // namespace penstock::schedule
