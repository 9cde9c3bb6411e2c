// What the generators write, as grids to read; what holds at every size is in sweep_test.cpp.
#include "penstock/schedule/generators/generators.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"
#include "tests/support/generated.h"

namespace penstock::schedule {
namespace {

using testing_support::for_each_size_of;
using verify::VerifiedSchedule;

TEST(GPipe, TwoRanksThreeMicrobatches) {
  EXPECT_EQ(grid(make_schedule("gpipe", {.ranks = 2, .microbatches = 3})),
            "rank 0: 0F0 0F1 0F2 0B0 0B1 0B2\n"
            "rank 1: 1F0 1F1 1F2 1B0 1B1 1B2\n");
}

TEST(OneFOneB, ThreeRanksFourMicrobatches) {
  EXPECT_EQ(grid(make_schedule("1f1b", {.ranks = 3, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "rank 1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "rank 2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
}

TEST(OneFOneB, WarmupDepthIsStagesMinusRank) {
  for (std::int32_t ranks = 1; ranks <= 8; ++ranks) {
    for (std::int32_t microbatches = 1; microbatches <= 24; ++microbatches) {
      const Schedule order = make_schedule("1f1b", {.ranks = ranks, .microbatches = microbatches});
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
  EXPECT_EQ(grid(make_schedule("interleaved_1f1b",
                               {.ranks = 2, .stages_per_rank = 2, .microbatches = 2})),
            "rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n"
            "rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1\n");
}

TEST(Interleaved1F1B, ALastGroupMayBeSmaller) {
  const Schedule order =
      make_schedule("interleaved_1f1b",
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
  EXPECT_EQ(makespan(make_schedule("interleaved_1f1b", sizes)),
            makespan(make_schedule("1f1b", sizes)));
}

TEST(LoopedBfs, BackwardIsTheReverse) {
  EXPECT_EQ(
      grid(make_schedule("looped_bfs", {.ranks = 2, .stages_per_rank = 2, .microbatches = 2})),
      "rank 0: 0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0\n"
      "rank 1: 1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0\n");
}

TEST(ZeroBubble, H1DelaysWByTheRank) {
  EXPECT_EQ(grid(make_schedule("zb_h1", {.ranks = 3, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3\n"
            "rank 1: 1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3\n"
            "rank 2: 2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3\n");
}

TEST(ZeroBubble, H2HasTwiceTheDepth) {
  EXPECT_EQ(grid(make_schedule("zb_h2", {.ranks = 2, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3\n"
            "rank 1: 1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3\n");
}

TEST(ZeroBubble, InterleavedOverOneStageIsH1) {
  for_each_size_of(find_generator("interleaved_zero_bubble"), {.stages_per_rank_max = 1},
                   [](const Generator&, const Sizes& sizes) {
                     EXPECT_EQ(make_schedule("interleaved_zero_bubble", sizes).programs,
                               make_schedule("zb_h1", sizes).programs);
                   });
}

TEST(Zbv, TwoRanksThreeMicrobatches) {
  EXPECT_EQ(grid(make_schedule("zbv", {.ranks = 2, .stages_per_rank = 2, .microbatches = 3})),
            "rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2\n"
            "rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2\n");
}

// Published, rank 1 runs 2W0 before 1I0, for which rank 0 waits.
TEST(Zbv, FittedToTwoMicrobatches) {
  Sizes sizes{.ranks = 2, .stages_per_rank = 2, .microbatches = 2};
  EXPECT_EQ(grid(make_schedule("zbv", sizes)),
            "rank 0: 0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1\n"
            "rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1\n");
  sizes.rule = Rule::Fitted;
  EXPECT_EQ(grid(make_schedule("zbv", sizes)),
            "rank 0: 0F0 0F1 3F0 3I0 3F1 3I1 0I0 3W0 0I1 3W1 0W0 0W1\n"
            "rank 1: 1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 2W0 1W0 2W1 1W1\n");
}

TEST(DualPipeV, OverlapsForwardsWithBackwards) {
  EXPECT_EQ(grid(make_schedule("dualpipev", {.ranks = 2, .stages_per_rank = 2, .microbatches = 4})),
            "rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1)OVERLAP_F_B (3F2;0B0)OVERLAP_F_B 3B2 "
            "(3F3;0B1)OVERLAP_F_B 3B3 0I2 0W2 0I3 0W3\n"
            "rank 1: 1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0)OVERLAP_F_B (1F3;2B1)OVERLAP_F_B "
            "(2F3;1B1)OVERLAP_F_B 2B2 1B2 2I3 1I3 2W3 1W3\n");
}

TEST(VBlocks, VMinOfTwoRanks) {
  EXPECT_EQ(grid(make_schedule("v_min", {.ranks = 2, .stages_per_rank = 2, .microbatches = 3})),
            "rank 0: 0F0 0F1 3F0 3I0 3W0 3F1 0I0 0W0 3I1 3W1 0F2 0I1 0W1 3F2 3I2 3W2 0I2 0W2\n"
            "rank 1: 1F0 2F0 1F1 2F1 2I0 1I0 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 2W2 1W2\n");
}

TEST(VBlocks, VHalfOfThreeRanks) {
  EXPECT_EQ(grid(make_schedule("v_half", {.ranks = 3, .stages_per_rank = 2, .microbatches = 3})),
            "rank 0: 0F0 0F1 0F2 5F0 5I0 5W0 5F1 5I1 5W1 0I0 0W0 5F2 5I2 0I1 5W2 0W1 0I2 0W2\n"
            "rank 1: 1F0 1F1 4F0 4F1 4I0 4W0 1F2 4I1 1I0 4W1 1W0 4F2 1I1 4I2 1W1 4W2 1I2 1W2\n"
            "rank 2: 2F0 3F0 2F1 3F1 3I0 3W0 2I0 2W0 2F2 3F2 3I1 2I1 3W1 2W1 3I2 2I2 3W2 2W2\n");
}

TEST(Hanayo, OneWaveOfTwoRanks) {
  EXPECT_EQ(grid(make_schedule("hanayo", {.ranks = 2, .stages_per_rank = 2, .microbatches = 3})),
            "rank 0: 0F0 0F1 0F2 3F0 3B0 3F1 3B1 0B0 3F2 3B2 0B1 0B2\n"
            "rank 1: 1F0 2F0 1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1 2B2 1B2\n");
}

TEST(Hanayo, TwoWavesOfTwoRanks) {
  EXPECT_EQ(grid(make_schedule("hanayo", {.ranks = 2, .stages_per_rank = 4, .microbatches = 1})),
            "rank 0: 0F0 3F0 4F0 7F0 7B0 4B0 3B0 0B0\n"
            "rank 1: 1F0 2F0 5F0 6F0 6B0 5B0 2B0 1B0\n");
}

TEST(ForwardOnly, StagesGoRoundTheRanks) {
  const Schedule order =
      make_schedule("forward_only", {.ranks = 2, .stages_per_rank = 2, .microbatches = 2});
  EXPECT_EQ(grid(order),
            "rank 0: 0F0 0F1 2F0 2F1\n"
            "rank 1: 1F0 1F1 3F0 3F1\n");
  EXPECT_EQ(order.purpose, Purpose::Forward);
}

}  // namespace
}  // namespace penstock::schedule
