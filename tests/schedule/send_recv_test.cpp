// Where the passes put SEND and RECV.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/messages.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/verify/verify.h"
#include "tests/support/generated.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::Random;
using testing_support::random_order;
using testing_support::rows;
using verify::Channels;

// The messages between two ranks as the first of them has them, each named by its SEND.
using Links = std::map<std::pair<std::size_t, std::size_t>, std::vector<std::string>>;

Links links_of(const Schedule& schedule) {
  const Messages messages(schedule);
  Links links;
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const Action& action : schedule.programs[rank]) {
      if (!is_send(action.op) && !is_receive(action.op)) continue;
      const Action send = is_send(action.op) ? action : other_end(action);
      links[{rank, messages.peer_of(action)}].push_back(to_string(send));
    }
  }
  return links;
}

// What verify says of the schedule first; "" when it is good.
std::string objection(const Schedule& schedule, Channels channels) {
  const auto verdict = verify::verify(schedule, {.channels = channels});
  if (verdict.diagnostics.empty()) return "";
  return str(to_string(channels), ": ", to_string(verdict.diagnostics[0]), "\n", grid(schedule));
}

// The same under each kind of channel for which order is all that links two ranks, or less.
std::string any_objection(const Schedule& schedule) {
  return objection(schedule, Channels::Tagged) + objection(schedule, Channels::DirFifo) +
         objection(schedule, Channels::PairFifo);
}

TEST(SendRecv, AsTorchFollowTheTurnsOfTheRanks) {
  EXPECT_EQ(grid(add_send_recv_as_torch(make_schedule("gpipe", {.ranks = 2, .microbatches = 2}))),
            "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n"
            "rank 1: 1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1\n");
}

TEST(SendRecv, AsTorchAnIdleSlotTakesATurn) {
  const Timetable table = parse_timetable("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n", "idle");
  EXPECT_EQ(grid(add_send_recv_as_torch(table)),
            "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n"
            "rank 1: 1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1\n");
  EXPECT_EQ(add_send_recv_as_torch(pack(table.schedule)), add_send_recv_as_torch(table.schedule));
}

TEST(SendRecv, WithoutLookaheadReceivesJustBeforeUse) {
  EXPECT_EQ(grid(add_send_recv(make_schedule("gpipe", {.ranks = 2, .microbatches = 2}), 0)),
            "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n"
            "rank 1: 1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1\n");
}

TEST(SendRecv, LookaheadPostsReceivesThatManyComputesEarlier) {
  EXPECT_EQ(
      grid(add_send_recv(make_schedule("gpipe", {.ranks = 2, .microbatches = 3}), 1)),
      "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0RECV_B1 0B0 0RECV_B2 0B1 0B2\n"
      "rank 1: 1RECV_F0 1RECV_F1 1F0 1RECV_F2 1F1 1F2 1B0 1SEND_B0 1B1 1SEND_B1 1B2 "
      "1SEND_B2\n");
}

TEST(SendRecv, StagesOfOneRankExchangeNothing) {
  for (const Schedule& lowered : {add_send_recv(rows({"0F0,1F0,1B0,0B0"})),
                                  add_send_recv_at_use(rows({"0F0,1F0,1B0,0B0"}))}) {
    EXPECT_EQ(grid(lowered), "rank 0: 0F0 1F0 1B0 0B0\n");
    EXPECT_FALSE(is_lowered(lowered));
  }
}

TEST(SendRecv, StandAroundAnOverlappedPair) {
  const Schedule order = rows({"0F0,(0F1;0B0)OVERLAP_F_B,0B1", "1F0,1B0,1F1,1B1"});
  EXPECT_EQ(grid(add_send_recv_at_use(order)),
            "rank 0: 0F0 0SEND_F0 0RECV_B0 (0F1;0B0)OVERLAP_F_B 0SEND_F1 0RECV_B1 0B1\n"
            "rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1\n");
}

TEST(SendRecv, EveryCorrectOrderStaysCorrectHoweverItIsLowered) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 200; ++trial) {
    const Schedule order = random_order(random, {.overlap = random.one_of<double>({0, 0.5}),
                                                 .split = random.one_of<double>({0, 0.5})});
    ASSERT_EQ(objection(order, Channels::Tagged), "");
    std::vector<Schedule> lowered = {add_send_recv_as_torch(order)};
    for (const std::int32_t lookahead : {0, 1, 2, 4, 1000}) {
      lowered.push_back(add_send_recv(order, lookahead));
    }
    for (const Schedule& program : lowered) {
      ASSERT_EQ(any_objection(program), "");
      EXPECT_EQ(testing_support::compute_only(program).programs, order.programs);
    }
    const Schedule at_use = add_send_recv_at_use(order);
    ASSERT_EQ(objection(at_use, Channels::Tagged), "");
    EXPECT_EQ(testing_support::compute_only(at_use).programs, order.programs);
  }
}

TEST(SendRecv, GeneratedSchedulesVerifyLoweredByUsAndAsTorchLowersThem) {
  testing_support::for_each_generated(
      {.ranks_max = 5, .stages_per_rank_max = 3, .microbatches_max = 12},
      [](const Generator& generator, const Sizes& sizes) {
        const Schedule order = generator.make(sizes);
        ASSERT_EQ(any_objection(lower_communication(order)), "");
        ASSERT_EQ(any_objection(lower_as_torch(order)), "");
        ASSERT_EQ(any_objection(place_receives(lower_as_torch(order), 0)), "");
      });
}

TEST(PlaceReceives, KeepsTheOrderOfEveryLink) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    // At use, the two ends may disagree: each keeps its own order.
    const Schedule lowered = add_send_recv_at_use(random_order(random));
    for (const std::int32_t lookahead : {0, 1, 3}) {
      EXPECT_EQ(links_of(place_receives(lowered, lookahead)), links_of(lowered));
    }
  }
}

struct Receive {
  std::int32_t ahead = 0;                // Computes between it and the one that needs it.
  std::int32_t at = 0;                   // Computes before it.
  std::optional<std::int32_t> previous;  // Computes before the message of its link in front of it,
  std::optional<std::int32_t> next;      // and before the one behind it.
};

std::vector<Receive> receives_of(const Schedule& schedule, const Program& program) {
  const Messages messages(schedule);
  std::map<std::size_t, std::int32_t> last_at;      // By peer.
  std::map<std::size_t, std::size_t> last_receive;  // By peer: index into `receives`.
  std::map<std::string, std::size_t> by_text;
  std::vector<Receive> receives;
  std::int32_t computes = 0;
  for (const Action& action : program) {
    if (is_compute(action.op)) {
      const auto needs = messages.received_before(action);
      if (needs) {
        Receive& receive = receives.at(by_text.at(to_string(*needs)));
        receive.ahead = computes - receive.at;
      }
      ++computes;
    }
    if (!is_send(action.op) && !is_receive(action.op)) continue;
    const std::size_t peer = messages.peer_of(action);
    if (const auto before = last_receive.find(peer); before != last_receive.end()) {
      receives[before->second].next = computes;
      last_receive.erase(before);
    }
    if (is_receive(action.op)) {
      by_text[to_string(action)] = last_receive[peer] = receives.size();
      receives.push_back({.at = computes});
      if (last_at.contains(peer)) receives.back().previous = last_at[peer];
    }
    last_at[peer] = computes;
  }
  return receives;
}

TEST(PlaceReceives, PutsEachAtTheLookaheadOrAsNearAsItsLinkAllows) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  int forced_early = 0;
  int forced_late = 0;
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random);
    for (const std::int32_t lookahead : {0, 1, 3}) {
      const Schedule lowered = add_send_recv(order, lookahead);
      for (const Program& program : lowered.programs) {
        for (const Receive& receive : receives_of(lowered, program)) {
          const std::int32_t wanted = std::max(0, receive.at + receive.ahead - lookahead);
          if (receive.at < wanted) {  // What comes behind it could not wait.
            ASSERT_TRUE(receive.next == receive.at) << grid(lowered);
            ++forced_early;
          } else if (receive.at > wanted) {  // What stands in front of it came no earlier.
            ASSERT_TRUE(receive.previous == receive.at) << grid(lowered);
            ++forced_late;
          }
        }
      }
    }
  }
  EXPECT_GT(forced_early, 100);
  EXPECT_GT(forced_late, 100);
}

}  // namespace
}  // namespace penstock::schedule
