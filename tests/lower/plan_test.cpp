// What a plan says: its text, its sizes, its tags, and the errors of lower().
#include "penstock/lower/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/golden.h"
#include "tests/support/schedules.h"

namespace penstock::lower {
namespace {

using schedule::Schedule;
using schedule::Sizes;
using testing_support::rows;
using verify::VerifiedSchedule;

partition::Partition one_layer_per_stage(std::int32_t stages) {
  partition::Partition partition;
  for (std::int32_t s = 0; s <= stages; ++s) partition.bounds.push_back(s);
  return partition;
}

Plan lower_schedule(const Schedule& schedule, std::int32_t rank, std::int32_t data = 1) {
  const auto mesh =
      mesh::make_mesh(schedule.ranks() * data, {.pipe = schedule.ranks(), .data = data});
  return lower(VerifiedSchedule::from(schedule), one_layer_per_stage(schedule.stages), mesh,
               Rank(rank));
}

Schedule lowered(std::string_view name, const Sizes& sizes) {
  return schedule::lower_communication(schedule::make_schedule(name, sizes));
}

// As lowered(), with receives posted `lookahead` compute actions ahead.
Schedule with_messages(std::string_view name, const Sizes& sizes, std::int32_t lookahead) {
  return schedule::add_send_recv(
      schedule::add_reduce_gradients(schedule::make_schedule(name, sizes)), lookahead);
}

TEST(Plans, ReadAsTheRecordedText) {
  const Schedule schedule = with_messages("1f1b", {.ranks = 3, .microbatches = 4}, 4);
  std::string text;
  for (std::int32_t r = 0; r < 3; ++r) text += to_string(lower_schedule(schedule, r)) + "\n";
  testing_support::expect_golden("plan_1f1b_3x4.txt", text);
}

TEST(Plans, OfStagesThatShareRanksReadAsTheRecordedText) {
  const Schedule order =
      rows({"0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1", "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1"});
  const Schedule schedule = schedule::add_send_recv(schedule::add_reduce_gradients(order), 4);
  std::string text;
  for (std::int32_t r = 0; r < 2; ++r) text += to_string(lower_schedule(schedule, r)) + "\n";
  testing_support::expect_golden("plan_v_2x2.txt", text);
}

TEST(Plans, HaveALinePerInstruction) {
  const Plan plan =
      lower_schedule(rows({"0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"}), 1);
  EXPECT_EQ(to_string(plan),
            "plan of rank 1 for test(ranks=2, stages=2, microbatches=1), stages 1\n"
            "0 RECEIVE 1RECV_F0 from rank 0 slot 0\n"
            "1 COMPUTE 1F0 from message to batch slot 0\n"
            "2 COMPUTE 1B0 from batch to message last\n"
            "3 SEND 1SEND_B0 to rank 0 slot 0\n");
}

TEST(Plans, KnowTheEndsOfTheModel) {
  const Schedule schedule = lowered("gpipe", {.ranks = 3, .microbatches = 2});
  for (std::int32_t r = 0; r < 3; ++r) {
    const Plan plan = lower_schedule(schedule, r);
    EXPECT_EQ(plan.has_first_stage, r == 0);
    EXPECT_EQ(plan.has_last_stage, r == 2);
    EXPECT_EQ(plan.chunks, std::vector{StageId(r)});
    EXPECT_EQ(plan.rank, Rank(r));
    EXPECT_EQ(plan.stages, 3);
    EXPECT_EQ(plan.microbatches, 2);
    EXPECT_EQ(plan.purpose, schedule::Purpose::Train);
    EXPECT_EQ(plan.schedule, "gpipe(ranks=3, stages=3, microbatches=2)");
  }
}

TEST(Plans, PeersStayInTheirReplica) {
  const Schedule schedule = lowered("1f1b", {.ranks = 3, .microbatches = 4});
  for (std::int32_t r = 0; r < 6; ++r) {
    std::set<std::int32_t> peers;
    for (const Instruction& i : lower_schedule(schedule, r, 2).instructions) {
      if (i.kind == Kind::Send || i.kind == Kind::Receive) peers.insert(i.peer.value);
    }
    std::set<std::int32_t> neighbours;
    if (r - 2 >= 0) neighbours.insert(r - 2);
    if (r + 2 < 6) neighbours.insert(r + 2);
    EXPECT_EQ(peers, neighbours) << "rank " << r;
  }
}

TEST(Plans, AreTheSameInEveryReplicaButForPeers) {
  const Schedule schedule = lowered("1f1b", {.ranks = 2, .microbatches = 5});
  const auto kinds = [&](std::int32_t rank) {
    std::vector<std::string> texts;
    for (const Instruction& i : lower_schedule(schedule, rank, 2).instructions) {
      texts.push_back(str(static_cast<int>(i.kind), i.action, i.slot, i.tag));
    }
    return texts;
  };
  EXPECT_EQ(kinds(0), kinds(1));
  EXPECT_EQ(kinds(2), kinds(3));
}

TEST(Plans, OneFOneBBuffersDoNotGrowWithMicrobatches) {
  for (std::int32_t ranks = 2; ranks <= 6; ++ranks) {
    const Schedule few = lowered("1f1b", {.ranks = ranks, .microbatches = 16});
    const Schedule many = lowered("1f1b", {.ranks = ranks, .microbatches = 64});
    for (std::int32_t r = 0; r < ranks; ++r) {
      const Plan plan = lower_schedule(few, r);
      const Plan longer = lower_schedule(many, r);
      EXPECT_EQ(plan.forward_slots, longer.forward_slots);
      EXPECT_EQ(plan.backward_slots, longer.backward_slots);
      EXPECT_EQ(plan.send_slots, longer.send_slots);
      EXPECT_EQ(plan.peak_activations, ranks - r);
    }
  }
}

TEST(Plans, LookaheadIsWhatBuffersCostBeyondTheLiveMicrobatches) {
  for (const std::int32_t lookahead : {0, 1, 2, 4, 8}) {
    const Schedule schedule = with_messages("1f1b", {.ranks = 4, .microbatches = 24}, lookahead);
    for (std::int32_t r = 0; r < 4; ++r) {
      const Plan plan = lower_schedule(schedule, r);
      EXPECT_LE(plan.forward_slots[0], 4 - r + lookahead) << "rank " << r;
      EXPECT_LE(plan.backward_slots[0], lookahead + 1) << "rank " << r;
    }
  }
}

TEST(Plans, EndsOfThePipelineHaveNoBuffersOutwards) {
  const Schedule schedule = lowered("gpipe", {.ranks = 2, .microbatches = 3});
  EXPECT_EQ(lower_schedule(schedule, 0).forward_slots, (std::vector<std::int32_t>{0}));
  EXPECT_EQ(lower_schedule(schedule, 0).backward_slots, (std::vector<std::int32_t>{3}));
  EXPECT_EQ(lower_schedule(schedule, 1).forward_slots, (std::vector<std::int32_t>{3}));
  EXPECT_EQ(lower_schedule(schedule, 1).backward_slots, (std::vector<std::int32_t>{0}));
}

TEST(Plans, OfOneRankNeedNoMessages) {
  const Plan plan =
      lower_schedule(schedule::make_schedule("gpipe", {.ranks = 1, .microbatches = 2}), 0);
  EXPECT_EQ(plan.instructions.size(), 4u);
  EXPECT_EQ(plan.send_slots, 0);
}

std::string refusal(const Schedule& schedule, std::int32_t data) {
  try {
    lower_schedule(schedule, 0, data);
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Lower, NeedsMessagesBetweenRanks) {
  EXPECT_EQ(refusal(schedule::make_schedule("gpipe", {.ranks = 2, .microbatches = 2}), 1),
            "schedule gpipe(ranks=2, stages=2, microbatches=2): only orders the compute; add its "
            "messages first");
}

TEST(Lower, NeedsReductionsBetweenReplicas) {
  EXPECT_EQ(refusal(schedule::add_send_recv(
                        schedule::make_schedule("gpipe", {.ranks = 2, .microbatches = 2})),
                    2),
            "schedule gpipe(ranks=2, stages=2, microbatches=2): no REDUCE_GRAD, and 2 replicas to "
            "keep equal; add one per stage, after its last backward");
  EXPECT_EQ(refusal(schedule::make_schedule("gpipe", {.ranks = 1, .microbatches = 2}), 2),
            "schedule gpipe(ranks=1, stages=1, microbatches=2): no REDUCE_GRAD, and 2 replicas to "
            "keep equal; add one per stage, after its last backward");
  EXPECT_EQ(refusal(lowered("gpipe", {.ranks = 2, .microbatches = 2}), 2), "accepted");
  const Schedule forward = schedule::make_schedule("forward_only", {.ranks = 2, .microbatches = 2});
  EXPECT_EQ(refusal(schedule::lower_communication(forward), 2), "accepted");
}

TEST(Lower, ASplitBackwardKeepsItsBuffersUntilItsW) {
  const Schedule order = rows({"0F0,0F1,0F2,0I0,0I1,0W0,0I2,0W1,0W2", "1F0,1B0,1F1,1B1,1F2,1B2"});
  const std::string plan = to_string(lower_schedule(schedule::add_send_recv(order, 0), 0));
  EXPECT_EQ(plan.substr(plan.find("7 ")),
            "7 COMPUTE 0I0 from message to batch slot 0\n"
            "8 RECEIVE 0RECV_B1 from rank 1 slot 1\n"
            "9 AWAIT 0SEND_F0 to rank 1 slot 0\n"
            "10 COMPUTE 0I1 from message to batch slot 1\n"
            "11 COMPUTE 0W0\n"
            "12 RECEIVE 0RECV_B2 from rank 1 slot 0\n"
            "13 AWAIT 0SEND_F1 to rank 1 slot 1\n"
            "14 COMPUTE 0I2 from message to batch slot 0\n"
            "15 COMPUTE 0W1\n"
            "16 COMPUTE 0W2 last\n");
}

TEST(Lower, WeightsAreGatheredAndDroppedAndReducedWhereTheProgramSays) {
  EXPECT_EQ(to_string(lower_schedule(rows({"0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD0"}), 0)),
            "plan of rank 0 for test(ranks=1, stages=1, microbatches=1), stages 0\n"
            "0 WEIGHTS 0UNSHARD\n"
            "1 COMPUTE 0F0 from batch to batch\n"
            "2 COMPUTE 0B0 from batch to batch last\n"
            "3 WEIGHTS 0RESHARD\n"
            "4 REDUCE 0REDUCE_GRAD0\n");
}

TEST(Lower, AnOverlappedPairIsAForwardAndThenABackward) {
  const Plan plan = lower_schedule(rows({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}), 0);
  EXPECT_EQ(to_string(plan),
            "plan of rank 0 for test(ranks=1, stages=1, microbatches=2), stages 0\n"
            "0 COMPUTE 0F0 from batch to batch\n"
            "1 COMPUTE 0F1 from batch to batch\n"
            "2 COMPUTE 0B0 from batch to batch\n"
            "3 COMPUTE 0B1 from batch to batch last\n");
}

TEST(LowerDeathTest, MeshesOfAnotherSizeAreABug) {
  const auto verified = VerifiedSchedule::from(lowered("gpipe", {.ranks = 2}));
  const auto mesh = mesh::make_mesh(3, {.pipe = 3, .data = 1});
  EXPECT_DEATH(lower(verified, one_layer_per_stage(2), mesh, Rank(0)), "check failed.*2 ranks");
  const auto fitting = mesh::make_mesh(2, {.pipe = 2, .data = 1});
  EXPECT_DEATH(lower(verified, one_layer_per_stage(3), fitting, Rank(0)), "check failed.*2 stages");
}

TEST(MessageTag, IsTheSameOnBothEndsAndDifferentForEveryMessage) {
  std::set<std::int32_t> tags;
  std::size_t messages = 0;
  for (const char* op : {"RECV_F", "RECV_B"}) {
    for (const std::int32_t stage : {1, 2, 3, 1000, 2046}) {
      for (const std::int32_t m : {0, 1, 255, 65535}) {
        for (const std::int32_t part : {kValuePart, kHeaderPart, 2, 3}) {
          const auto receive = schedule::parse_action(str(stage, op, m));
          const std::int32_t tag = message_tag(receive, part);
          EXPECT_EQ(message_tag(schedule::other_end(receive), part), tag);
          EXPECT_GE(tag, 0);
          tags.insert(tag);
          ++messages;
        }
      }
    }
  }
  EXPECT_EQ(tags.size(), messages);
}

TEST(MessageTag, RefusesWhatItCannotName) {
  EXPECT_NO_THROW(message_tag(schedule::parse_action("2047RECV_F65535"), 3));
  EXPECT_THROW(message_tag(schedule::parse_action("2048RECV_F0"), 0), ScheduleError);
  EXPECT_THROW(message_tag(schedule::parse_action("2047SEND_F0"), 0), ScheduleError);
  EXPECT_THROW(message_tag(schedule::parse_action("1RECV_B65536"), 0), ScheduleError);
  EXPECT_THROW(message_tag(schedule::parse_action("1RECV_F0"), 4), ScheduleError);
}

}  // namespace
}  // namespace penstock::lower
