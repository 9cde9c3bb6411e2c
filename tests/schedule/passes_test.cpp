#include "penstock/schedule/passes/passes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/verify/verify.h"
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
  const Schedule once = add_reduce_gradients(one_f_one_b({.ranks = 2, .microbatches = 3}));
  EXPECT_EQ(add_reduce_gradients(once).programs, once.programs);
  EXPECT_EQ(add_reduce_gradients(once, Reduction::OfEach).programs, once.programs);
}

TEST(ReduceGradients, LeaveForwardOnlySchedulesAlone) {
  const Schedule order = forward_only({.ranks = 2, .microbatches = 2});
  EXPECT_EQ(add_reduce_gradients(order).programs, order.programs);
}

TEST(SendRecv, WithoutLookaheadReceivesJustBeforeUse) {
  EXPECT_EQ(grid(add_send_recv(gpipe({.ranks = 2, .microbatches = 2}), 0)),
            "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n"
            "rank 1: 1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1\n");
}

TEST(SendRecv, LookaheadPostsReceivesThatManyComputesEarlier) {
  EXPECT_EQ(grid(add_send_recv(gpipe({.ranks = 2, .microbatches = 2}), 1)),
            "rank 0: 0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0B0 0B1\n"
            "rank 1: 1RECV_F0 1RECV_F1 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1\n");
}

TEST(SendRecv, StagesOfOneRankExchangeNothing) {
  const Schedule lowered = add_send_recv(rows({"0F0,1F0,1B0,0B0"}));
  EXPECT_EQ(grid(lowered), "rank 0: 0F0 1F0 1B0 0B0\n");
  EXPECT_FALSE(is_lowered(lowered));
}

TEST(SendRecv, EveryCorrectOrderStaysCorrectAtEveryLookahead) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 300; ++trial) {
    const Schedule order = random_order(random);
    ASSERT_EQ(verify::verify(order).diagnostics.size(), 0u) << grid(order);
    for (const std::int32_t lookahead : {0, 1, 2, 4, 1000}) {
      const Schedule lowered = add_send_recv(add_reduce_gradients(order), lookahead);
      const auto verdict = verify::verify(lowered);
      ASSERT_TRUE(verdict.diagnostics.empty()) << "lookahead " << lookahead << "\n"
                                               << to_string(verdict.diagnostics[0]) << "\n"
                                               << grid(lowered);
      EXPECT_EQ(testing_support::compute_only(lowered).programs, order.programs);
    }
  }
}

// How many compute actions a receive is ahead of the one that uses it, at most.
std::int32_t furthest_receive(const Program& program) {
  std::int32_t furthest = 0;
  for (auto receive = program.begin(); receive != program.end(); ++receive) {
    if (!is_receive(receive->op)) continue;
    const Op user = receive->op == Op::RecvForward ? Op::Forward : Op::Backward;
    const auto use =
        std::find(receive, program.end(),
                  Action{.stage = receive->stage, .op = user, .microbatch = receive->microbatch});
    const auto between =
        std::count_if(receive, use, [](const Action& a) { return is_compute(a.op); });
    furthest = std::max(furthest, static_cast<std::int32_t>(between));
  }
  return furthest;
}

TEST(SendRecv, NoReceiveIsFurtherAheadThanTheLookahead) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random);
    for (const std::int32_t lookahead : {0, 1, 3}) {
      for (const Program& program : add_send_recv(order, lookahead).programs) {
        EXPECT_LE(furthest_receive(program), lookahead);
      }
    }
  }
}

TEST(SendRecvDeathTest, NegativeLookaheadIsABug) {
  EXPECT_DEATH(add_send_recv(gpipe({.ranks = 2}), -1), "lookahead -1");
}

}  // namespace
}  // namespace penstock::schedule
