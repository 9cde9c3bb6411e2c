#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/golden.h"

namespace penstock::schedule {
namespace {

std::string refusal(std::string_view name, const Sizes& sizes) {
  try {
    make_schedule(name, sizes);
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Registry, FindsNamesAndAliasesInAnyCase) {
  for (const char* name :
       {"1f1b", "1F1B", "Schedule1F1B", "schedule1f1b", "one_f_one_b", "TrainSchedule"}) {
    EXPECT_EQ(find_generator(name).name, "1f1b") << name;
  }
  for (const char* name : {"gpipe", "GPipe", "ScheduleGPipe"}) {
    EXPECT_EQ(find_generator(name).name, "gpipe") << name;
  }
  for (const char* name : {"zbv", "ZB-V", "zb_v", "ZBVZeroBubble", "ScheduleZBVZeroBubble"}) {
    EXPECT_EQ(find_generator(name).name, "zbv") << name;
  }
  EXPECT_EQ(find_generator("Interleaved1F1B").name, "interleaved_1f1b");
  EXPECT_EQ(find_generator("ZB-H1").name, "zb_h1");
}

TEST(Registry, NamesAreDifferentFromEachOther) {
  std::set<std::string> names;
  for (const Generator& generator : registry()) {
    EXPECT_TRUE(names.insert(lower_case(generator.name)).second) << generator.name;
    for (const auto alias : generator.aliases) {
      EXPECT_TRUE(names.insert(lower_case(alias)).second) << alias;
    }
  }
}

TEST(Registry, EntriesAreComplete) {
  for (const Generator& generator : registry()) {
    SCOPED_TRACE(generator.name);
    const Sizes sizes{.stages_per_rank = generator.stages_per_rank, .microbatches = 4};
    EXPECT_EQ(generator.objection(sizes), "");
    EXPECT_EQ(generator.make(sizes).name, generator.name);
    EXPECT_EQ(generator.make(sizes).purpose, generator.purpose);
    for (const auto text :
         {generator.summary, generator.constraints, generator.bubble, generator.peak}) {
      EXPECT_FALSE(text.empty());
    }
  }
}

TEST(Registry, TableHasALinePerSchedule) {
  const auto lines = split(registry_table(), '\n');
  ASSERT_GT(lines.size(), registry().size());
  for (std::size_t i = 0; i < registry().size(); ++i) {
    EXPECT_TRUE(lines[i + 1].starts_with(std::string(registry()[i].name) + " ")) << lines[i + 1];
    EXPECT_TRUE(lines[i + 1].ends_with(registry()[i].summary)) << lines[i + 1];
  }
}

TEST(Registry, GoesByPositionThenByName) {
  const auto before = [](const Generator& a, const Generator& b) {
    return std::pair(a.position, a.name) < std::pair(b.position, b.name);
  };
  EXPECT_TRUE(std::ranges::is_sorted(registry(), before));
}

// PENSTOCK_UPDATE_GOLDEN=1 (`make golden`) rewrites the page's table.
TEST(SchedulesPage, HasTheTableOfTheRegistry) {
  std::string table = "| name | | sizes | bubble | peak activations |\n|---|---|---|---|---|\n";
  for (const Generator& g : registry()) {
    table += str("| `", g.name, "` | ", g.summary, " | ", g.constraints, " | ", g.bubble, " | ",
                 g.peak, " |\n");
  }
  testing_support::expect_table("docs/schedules.md", table);
}

TEST(Registry, UnknownNamesGetTheNearest) {
  const std::string text = refusal("gpip", {});
  EXPECT_TRUE(
      text.starts_with("unknown schedule \"gpip\"; did you mean \"gpipe\"?\n"
                       "  note: known schedules: gpipe, 1f1b, interleaved_1f1b, "))
      << text;
  EXPECT_TRUE(refusal("zigzag", {}).starts_with("unknown schedule \"zigzag\"\n")) << text;
  const auto meant = [](std::string_view name) {
    return std::string(split(refusal(name, {}), '\n').at(0));
  };
  EXPECT_EQ(meant("zbh3"), "unknown schedule \"zbh3\"; did you mean \"zb_h1\"?");
  EXPECT_EQ(meant("ScheduleZBVZeroBuble"),
            "unknown schedule \"ScheduleZBVZeroBuble\"; did you mean \"zbv\"?");
  EXPECT_EQ(meant("Interleaved-1FB"),
            "unknown schedule \"Interleaved-1FB\"; did you mean \"interleaved_1f1b\"?");
  EXPECT_EQ(meant(std::string(1000, 'x') + "\x01"),
            "unknown schedule \"" + std::string(40, 'x') + "\"");
}

TEST(Registry, RefusalsNameWhatWouldWork) {
  EXPECT_EQ(refusal("gpipe", {.ranks = 0}), "schedule gpipe: ranks is 0, must be 1 to 1048576");
  EXPECT_EQ(refusal("1F1B", {.microbatches = -3}),
            "schedule 1f1b: microbatches is -3, must be 1 to 1048576");
  EXPECT_EQ(refusal("looped_bfs", {.stages_per_rank = 0}),
            "schedule looped_bfs: stages_per_rank is 0, must be 1 to 1048576");
  EXPECT_EQ(
      refusal("Schedule1F1B", {.ranks = 4, .microbatches = 3}),
      "schedule Schedule1F1B: microbatches is 3, must be at least ranks (4) in torch's class\n"
      "  note: nearest sizes that work: microbatches=4\n"
      "  note: the schedule 1f1b is the same and takes any number");
  EXPECT_EQ(refusal("1f1b", {.stages_per_rank = 2}),
            "schedule 1f1b: stages_per_rank is 2, must be 1: it has one stage per rank\n"
            "  note: nearest sizes that work: stages_per_rank=1");
  EXPECT_EQ(refusal("zbv", {.ranks = 4, .stages_per_rank = 4, .microbatches = 8}),
            "schedule zbv: stages_per_rank is 4, must be 2: its stages run down the ranks and up "
            "again\n"
            "  note: nearest sizes that work: stages_per_rank=2");
  EXPECT_EQ(refusal("dualpipev", {.ranks = 4, .stages_per_rank = 2, .microbatches = 6}),
            "schedule dualpipev: microbatches is 6, must be at least stages (8)\n"
            "  note: nearest sizes that work: microbatches=8");
  EXPECT_EQ(refusal("interleaved_1f1b", {.ranks = 4, .stages_per_rank = 2, .microbatches = 9}),
            "schedule interleaved_1f1b: microbatches is 9, must be a multiple of its 2 rounds "
            "(microbatches / ranks, rounded down)\n"
            "  note: nearest sizes that work: microbatches=8 or microbatches=10");
}

TEST(Registry, GroupsAreRefusedWhereTheyDoNotFit) {
  EXPECT_EQ(refusal("gpipe", {.microbatches = 4, .microbatch_group = 2}),
            "schedule gpipe: microbatch_group is 2, but it has no groups\n"
            "  note: nearest sizes that work: no microbatch_group");
  EXPECT_EQ(refusal("interleaved_1f1b", {.ranks = 4, .microbatches = 8, .microbatch_group = 3}),
            "schedule interleaved_1f1b: microbatch_group is 3, must be from ranks (4) to "
            "microbatches (8)\n"
            "  note: nearest sizes that work: microbatch_group=4");
  EXPECT_EQ(refusal("interleaved_1f1b", {.ranks = 4, .microbatches = 12, .microbatch_group = 5}),
            "schedule interleaved_1f1b: microbatches is 12, which leaves a last group of 2 after "
            "groups of 5; it must be empty or at least ranks (4)\n"
            "  note: nearest sizes that work: microbatches=10 or microbatches=14 or "
            "microbatch_group=4 or microbatch_group=6");
}

TEST(Registry, RefusalsNameSeveralSizesWhereOneIsNotEnough) {
  EXPECT_EQ(refusal("dualpipev", {.ranks = 4, .microbatches = 6}),
            "schedule dualpipev: stages_per_rank is 1, must be 2: its stages run down the ranks "
            "and up again\n"
            "  note: nearest sizes that work: stages_per_rank=2, microbatches=8");
  EXPECT_EQ(refusal("1f1b", {.stages_per_rank = 3, .microbatch_group = 4}),
            "schedule 1f1b: stages_per_rank is 3, must be 1: it has one stage per rank\n"
            "  note: nearest sizes that work: stages_per_rank=1, no microbatch_group");
}

TEST(Registry, RefusalsPreferNoGroupToFewerRanks) {
  EXPECT_EQ(refusal("interleaved_1f1b", {.ranks = 8, .microbatches = 4, .microbatch_group = 2}),
            "schedule interleaved_1f1b: microbatch_group is 2, must be from ranks (8) to "
            "microbatches (4)\n"
            "  note: nearest sizes that work: no microbatch_group");
}

TEST(Registry, WavesAreWhole) {
  EXPECT_EQ(refusal("hanayo", {.ranks = 4, .stages_per_rank = 3, .microbatches = 8}),
            "schedule hanayo: stages_per_rank is 3, must be even: a wave is two stages, down the "
            "ranks and up again\n"
            "  note: nearest sizes that work: stages_per_rank=2 or stages_per_rank=4");
  EXPECT_EQ(refusal("hanayo", {.stages_per_rank = 66}),
            "schedule hanayo: stages_per_rank is 66, must be at most 64\n"
            "  note: nearest sizes that work: stages_per_rank=64");
}

TEST(Registry, OnlyWhatHasAFittedProgramTakesThatRule) {
  const Sizes sizes{.ranks = 4, .stages_per_rank = 2, .microbatches = 3, .rule = Rule::Fitted};
  EXPECT_EQ(refusal("zbv", sizes), "accepted");
  EXPECT_EQ(refusal("looped_bfs", sizes),
            "schedule looped_bfs: rule is fitted, but it has only the published one\n"
            "  note: nearest sizes that work: rule=published");
}

TEST(Registry, WhatIsWorkedOutStepByStepHasFewRanks) {
  EXPECT_EQ(refusal("v_half", {.ranks = 5000, .stages_per_rank = 2, .microbatches = 2}),
            "schedule v_half: ranks is 5000, must be at most 4096\n"
            "  note: nearest sizes that work: ranks=4096");
}

TEST(Registry, SizesThatWouldNotFitInMemoryAreRefused) {
  EXPECT_EQ(refusal("1f1b", {.ranks = 1 << 14, .microbatches = 1 << 20}),
            "schedule 1f1b: 16384 stages x 1048576 microbatches are 17179869184 forwards, must be "
            "at most 67108864");
  EXPECT_EQ(refusal("looped_bfs",
                    {.ranks = 1 << 10, .stages_per_rank = 1 << 10, .microbatches = 1 << 10}),
            "schedule looped_bfs: 1048576 stages x 1024 microbatches are 1073741824 forwards, must "
            "be at most 67108864");
}

}  // namespace
}  // namespace penstock::schedule
