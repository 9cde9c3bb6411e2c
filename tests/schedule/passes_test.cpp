#include "penstock/plan/schedule/passes/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/verify/verify.h"
#include "tests/support/generated.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::Random;
using testing_support::random_order;
using testing_support::rows;

TEST(ReduceGradients, FollowsTheLastBackwardOfEachStage) {
  EXPECT_EQ(grid(add_reduce_gradients(rows({"0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1"}))),
            "rank 0: 0F0 1F0 0F1 1F1 1B0 0B0 1B1 1REDUCE_GRAD 0B1 0REDUCE_GRAD\n");
}

TEST(ReduceGradients, OfEachMicrobatchFollowItsBackward) {
  EXPECT_EQ(grid(add_reduce_gradients(rows({"0F0,0F1,0I1,0W1,0B0"}), Reduction::OfEach)),
            "rank 0: 0F0 0F1 0I1 0W1 0REDUCE_GRAD1 0B0 0REDUCE_GRAD0\n");
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random, {.overlap = 0.5, .split = 0.5});
    const Schedule reducing = add_reduce_gradients(order, Reduction::OfEach);
    const auto verdict = verify::verify(add_send_recv(reducing));
    ASSERT_TRUE(verdict.diagnostics.empty()) << to_string(verdict.diagnostics[0]);
    EXPECT_EQ(testing_support::compute_only(reducing).programs, order.programs);
  }
}

TEST(ReduceGradients, AreNotAddedTwice) {
  const Schedule once =
      add_reduce_gradients(make_schedule("1f1b", {.ranks = 2, .microbatches = 3}));
  EXPECT_EQ(add_reduce_gradients(once).programs, once.programs);
  EXPECT_EQ(add_reduce_gradients(once, Reduction::OfEach).programs, once.programs);
}

TEST(ReduceGradients, WaitForAllBackwardsOfAStage) {
  Schedule order = rows({"0F0,0F1,0B0,0B1,1B0"});
  EXPECT_EQ(grid(add_reduce_gradients(order)), "rank 0: 0F0 0F1 0B0 0B1 0REDUCE_GRAD 1B0\n");
}

TEST(ReduceGradients, LeaveForwardOnlySchedulesAlone) {
  const Schedule order = make_schedule("forward_only", {.ranks = 2, .microbatches = 2});
  EXPECT_EQ(add_reduce_gradients(order).programs, order.programs);
}

// What verify says of what a pass made, of a schedule that verified.
std::string objection(const Schedule& schedule) {
  const auto verdict = verify::verify(schedule);
  return verdict.diagnostics.empty() ? ""
                                     : to_string(verdict.diagnostics[0]) + "\n" + grid(schedule);
}

TEST(Unshard, GathersTheNextStagesAndDropsTheOthers) {
  EXPECT_EQ(grid(add_unshard(rows({"0F0,1F0,2F0,3F0,3B0,2B0,1B0,0B0"}))),
            "rank 0: 0UNSHARD 1UNSHARD 2UNSHARD 0F0 0RESHARD 3UNSHARD 1F0 2F0 3F0 3B0 3RESHARD "
            "0UNSHARD 2B0 2RESHARD 1B0 1RESHARD 0B0 0RESHARD\n");
  EXPECT_EQ(grid(add_unshard(rows({"0F0,1F0,1B0,0B0,0REDUCE_GRAD"}), 1)),
            "rank 0: 0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 1B0 1RESHARD 0UNSHARD 0B0 0REDUCE_GRAD "
            "0RESHARD\n");
}

TEST(Unshard, AnOverlappedPairHasBothItsStages) {
  EXPECT_EQ(grid(add_unshard(rows({"0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1"}), 1)),
            "rank 0: 0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 0UNSHARD (0F1;1B0)OVERLAP_F_B 1RESHARD 0B0 "
            "0RESHARD 1UNSHARD 1F1 1B1 1RESHARD 0UNSHARD 0B1 0RESHARD\n");
}

// The most stages that a rank has whole at once.
std::size_t most_whole(const Schedule& schedule) {
  std::size_t most = 0;
  for (const Program& program : schedule.programs) {
    std::set<StageId> whole;
    for (const Action& action : program) {
      if (action.op == Op::Unshard) whole.insert(action.stage);
      if (action.op == Op::Reshard) whole.erase(action.stage);
      most = std::max(most, whole.size());
    }
    EXPECT_TRUE(whole.empty());
  }
  return most;
}

TEST(Unshard, KeepsToTheWindowAndVerifies) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random, {.overlap = 0.5, .split = 0.5});
    for (const std::int32_t window : {1, 2, 3, 100}) {
      const Schedule sharded = add_unshard(order, window);
      ASSERT_EQ(objection(sharded), "");
      EXPECT_LE(most_whole(sharded), static_cast<std::size_t>(std::max(window, 2)));
      EXPECT_EQ(testing_support::compute_only(sharded).programs, order.programs);
    }
  }
}

TEST(SplitBackwards, PutTheWBehindTheI) {
  const Schedule order = rows({"0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2,0F3,0B3"});
  EXPECT_EQ(grid(split_backwards(order)),
            "rank 0: 0F0 0F1 (0F2;0B0)OVERLAP_F_B 0I1 0W1 0I2 0W2 0F3 0I3 0W3\n");
  EXPECT_EQ(grid(split_backwards(order, 2)),
            "rank 0: 0F0 0F1 (0F2;0B0)OVERLAP_F_B 0I1 0I2 0F3 0I3 0W1 0W2 0W3\n");
}

TEST(SplitBackwards, VerifyAtEveryDelay) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random, {.overlap = 0.5, .split = 0.3});
    for (const std::int32_t delay : {0, 1, 3, 100}) {
      ASSERT_EQ(objection(split_backwards(order, delay)), "") << "delay " << delay;
    }
  }
}

TEST(FuseBackwards, IsTheInverseOfSplit) {
  EXPECT_EQ(grid(fuse_backwards(rows({"0F0,0F1,0I0,0W0,0I1,0F2,0W1,0I2,0W2"}))),
            "rank 0: 0F0 0F1 0B0 0I1 0F2 0W1 0B2\n");
  EXPECT_EQ(grid(fuse_backwards(rows({"0I0,0W1,1I0,0W0"}))), "rank 0: 0I0 0W1 1I0 0W0\n");
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random, {.overlap = 0.5});
    EXPECT_EQ(fuse_backwards(split_backwards(order)).programs, order.programs);
  }
}

TEST(OverlapPairs, AreForwardsWithTheBackwardsBehindThem) {
  EXPECT_EQ(grid(overlap_pairs(make_schedule("1f1b", {.ranks = 2, .microbatches = 3}))),
            "rank 0: 0F0 (0F1;0B0)OVERLAP_F_B (0F2;0B1)OVERLAP_F_B 0B2\n"
            "rank 1: 1F0 1B0 1F1 1B1 1F2 1B2\n");
}

// Rank 1 pairs 1F1 with 1B0, which would have to wait for the 0F1 that waits for that 1B0.
TEST(OverlapPairs, ThatWouldWaitForEachOtherAreGivenUp) {
  EXPECT_EQ(grid(overlap_pairs(make_schedule("gpipe", {.ranks = 2, .microbatches = 2}))),
            "rank 0: 0F0 0F1 0B0 0B1\n"
            "rank 1: 1F0 (1F1;1B0)OVERLAP_F_B 1B1\n");
}

TEST(OverlapPairs, VerifyInTheSameOrder) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  int pairs = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const Schedule order = random_order(random, {.overlap = random.one_of<double>({0, 0.3})});
    Schedule paired = overlap_pairs(order);
    ASSERT_EQ(objection(paired), "") << grid(order);
    for (std::size_t rank = 0; rank < order.programs.size(); ++rank) {
      for (std::size_t i = 0; i < order.programs[rank].size(); ++i) {
        Action& action = paired.programs[rank][i];
        const bool was_paired = order.programs[rank][i].overlaps_next;
        pairs += action.overlaps_next && !was_paired;
        EXPECT_TRUE(action.overlaps_next || !was_paired);
        action.overlaps_next = was_paired;
      }
    }
    EXPECT_EQ(paired.programs, order.programs);
  }
  EXPECT_GT(pairs, 100);
}

TEST(Passes, MakeSchedulesThatVerifyOfEveryGeneratedOne) {
  testing_support::for_each_generated(
      {.ranks_max = 5, .stages_per_rank_max = 3, .microbatches_max = 12},
      [](const Generator& generator, const Sizes& sizes) {
        const Schedule order = generator.make(sizes);
        for (const Schedule& made :
             {add_unshard(order, 1), add_unshard(order), add_reduce_gradients(order),
              add_reduce_gradients(order, Reduction::OfEach), split_backwards(order),
              split_backwards(order, 2), fuse_backwards(order), overlap_pairs(order),
              add_send_recv(overlap_pairs(fuse_backwards(order)))}) {
          ASSERT_EQ(objection(made), "") << generator.name;
        }
        ASSERT_EQ(remove_idle_slots(align(pack(order))), order);
      });
}

TEST(Align, ReceivesShareTheSlotOfTheirSend) {
  const Schedule order = rows({"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"});
  EXPECT_EQ(to_csv(align(pack(add_send_recv(order, 0)), Waits::OfReceives)),
            "0F0,0SEND_F0,0F1,0SEND_F1,,0RECV_B0,0B0,,0RECV_B1,0B1\n"
            ",1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(Align, NamesTheReceiveThatIsStuck) {
  const Schedule program = rows({"0F0,0SEND_F0,3RECV_F0,0RECV_B0,3F0,3B0,3SEND_B0,0B0",
                                 "2RECV_B0,1RECV_F0,1F0,2F0,2SEND_F0,2B0,1B0,1SEND_B0"});
  EXPECT_EQ(objection(program), "");
  try {
    align(pack(program), Waits::OfReceives);
    FAIL() << "laid out";
  } catch (const ScheduleError& error) {
    EXPECT_EQ(error.message(),
              "test(ranks=2, stages=4, microbatches=1): rank 0 waits at 3RECV_F0 for 2SEND_F0 of "
              "rank 1, which never comes when every RECV is waited for");
  }
}

TEST(PassesDeathTest, SenselessParametersAreBugs) {
  const Schedule order = make_schedule("gpipe", {.ranks = 2});
  EXPECT_DEATH(add_unshard(order, 0), "window 0");
  EXPECT_DEATH(split_backwards(order, -1), "delay -1");
  EXPECT_DEATH(split_backwards(lower_communication(order)), "0SEND_F0 in a compute order");
  EXPECT_DEATH(add_send_recv(order, -1), "lookahead -1");
  EXPECT_DEATH(add_send_recv_as_torch(rows({"0B0,0F0", "1F0,1B0"})), "rank 0 never runs 0B0");
}

}  // namespace
}  // namespace penstock::schedule
