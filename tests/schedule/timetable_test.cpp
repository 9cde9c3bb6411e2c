#include "penstock/plan/schedule/timetable.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/torch.h"
#include "penstock/plan/schedule/passes/messages.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "tests/support/golden.h"
#include "tests/support/message_of.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::message_of;
using testing_support::Random;
using testing_support::random_order;
using testing_support::rows;

TEST(Timetable, KeepsTheEmptyCellsOfARow) {
  const Timetable table = parse_timetable(",0F0,,(0F1;0B0)OVERLAP_F_B,0B1,,\n\n1F0\n,,\n", "t");
  EXPECT_EQ(table.schedule, parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n\n1F0\n,\n", "t"));
  EXPECT_EQ(table.action_slots,
            (std::vector<std::vector<std::int32_t>>{{1, 3, 3, 4}, {}, {0}, {}}));
  EXPECT_EQ(table.lengths, (std::vector<std::int32_t>{7, 0, 1, 3}));
  EXPECT_EQ(to_csv(table), ",0F0,,(0F1;0B0)OVERLAP_F_B,0B1,,\n\n1F0\n,,\n");
}

// `table` with idle slots put into its rows.
Timetable with_gaps(Timetable table, Random& random) {
  for (std::size_t rank = 0; rank < table.action_slots.size(); ++rank) {
    std::int32_t shift = 0;
    for (std::size_t i = 0; i < table.action_slots[rank].size(); ++i) {
      const bool in_pair = i > 0 && table.schedule.programs[rank][i - 1].overlaps_next;
      if (!in_pair) shift += random.chance(0.3) ? random.between(1, 3) : 0;
      table.action_slots[rank][i] += shift;
    }
    table.lengths[rank] += shift + random.between(0, 2);
  }
  return table;
}

TEST(Timetable, ParseIsTheInverseOfPrint) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random, {.overlap = 0.5, .split = 0.3});
    Timetable table = with_gaps(pack(order), random);
    Timetable back = parse_timetable(to_csv(table), order.name);
    back.schedule.microbatches = table.schedule.microbatches;
    EXPECT_EQ(back, table);
  }
}

TEST(Timetable, WithoutItsIdleSlotsIsTheSchedule) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random, {.overlap = 0.5, .split = 0.3});
    EXPECT_EQ(to_csv(pack(order)), to_csv(order));
    EXPECT_EQ(remove_idle_slots(pack(order)), order);
    EXPECT_EQ(remove_idle_slots(align(pack(order))), order);
    EXPECT_EQ(remove_idle_slots(with_gaps(pack(order), random)), order);
  }
}

TEST(Align, PutsAnActionBehindWhatItNeeds) {
  EXPECT_EQ(to_csv(align(pack(rows({"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"})))),
            "0F0,0F1,,0B0,,0B1\n"
            ",1F0,1B0,1F1,1B1\n");
}

TEST(Align, KeepsIdleSlotsBetweenActions) {
  EXPECT_EQ(to_csv(align(parse_timetable("0F0,,0F1,\n,,1F0,1F1\n", "t"))),
            "0F0,,0F1,\n"
            ",,1F0,1F1\n");
  EXPECT_EQ(to_csv(align(parse_timetable(",,0F0,,0F1,\n1F0,,1F1,\n", "t"))),
            ",,0F0,,0F1,\n"
            ",,,1F0,,1F1,\n");
}

// The first slot in which it could run: behind the one before, and behind what it needs.
TEST(Align, PutsEveryActionAsEarlyAsItCan) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 100; ++trial) {
    const Schedule order = random_order(random, {.overlap = 0.3, .split = 0.3});
    const Messages messages(order);
    const Timetable table = align(pack(order));
    std::map<std::string, std::int32_t> sent;
    for (std::size_t rank = 0; rank < table.action_slots.size(); ++rank) {
      for (std::size_t i = 0; i < table.action_slots[rank].size(); ++i) {
        const auto send = messages.sent_after(order.programs[rank][i]);
        if (send) sent[to_string(*send)] = table.action_slots[rank][i];
      }
    }
    for (std::size_t rank = 0; rank < table.action_slots.size(); ++rank) {
      std::int32_t free = 0;
      for (std::size_t i = 0; i < order.programs[rank].size();) {
        const auto unit = unit_at(order.programs[rank], i);
        std::int32_t earliest = free;
        for (const Action& action : unit) {
          const auto receive = messages.received_before(action);
          if (receive) earliest = std::max(earliest, sent.at(to_string(other_end(*receive))) + 1);
        }
        ASSERT_EQ(table.action_slots[rank][i], earliest) << to_csv(table);
        free = earliest + 1;
        i += unit.size();
      }
      EXPECT_EQ(table.lengths[rank], free);
    }
  }
}

TEST(TorchTimetable, IsTorchsPipelineOrderByItsHash) {
  int compared = 0;
  for (const std::string& line : testing_support::golden_lines("torch_lowered_hashes.txt")) {
    const auto words = split(line, ' ');
    const Timetable table = torch_timetable(words.at(0), {.ranks = std::stoi(words.at(1)),
                                                          .stages_per_rank = std::stoi(words.at(2)),
                                                          .microbatches = std::stoi(words.at(3))});
    EXPECT_EQ(std::to_string(stable_hash(to_csv(table))), words.at(4)) << line << "\n"
                                                                       << to_csv(table);
    ++compared;
  }
  EXPECT_EQ(compared, 322);
}

TEST(TorchTimetable, LeavesTheSlotsIdleThatTorchDoes) {
  EXPECT_EQ(to_csv(torch_timetable("interleaved_1f1b", {.ranks = 2, .microbatches = 2})),
            "0F0,0F1,,,,0B0,,0B1\n"
            ",1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(to_csv(torch_timetable("1f1b", {.ranks = 2, .microbatches = 2})),
            "0F0,0F1,0B0,0B1,0REDUCE_GRAD\n"
            "1F0,1B0,1F1,1B1,1REDUCE_GRAD\n");
}

TEST(TorchTimetable, RefusesWhatTorchHasNot) {
  EXPECT_TRUE(torch_has("ScheduleZBVZeroBubble"));
  EXPECT_FALSE(torch_has("zb_h1"));
  EXPECT_FALSE(torch_has("mine.csv"));
  EXPECT_EQ(message_of([] { torch_timetable("zb_h1", {.ranks = 2, .microbatches = 2}); }),
            "schedule zb_h1 is not one of torch's\n"
            "  note: torch has gpipe, 1f1b, interleaved_1f1b, looped_bfs, interleaved_zero_bubble, "
            "zbv, dualpipev");
  EXPECT_THROW(torch_timetable("dualpipev", {.ranks = 2, .stages_per_rank = 2, .microbatches = 3}),
               ScheduleError);
}

}  // namespace
}  // namespace penstock::schedule
