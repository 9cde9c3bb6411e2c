#include "penstock/plan/schedule/cells.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::rows;
using Cells = std::vector<std::vector<std::string>>;

TEST(Cells, AreThoseOfEachRank) {
  const Schedule schedule = parse_cells({{"0F0", "0B0"}, {"1F0", "1B0"}}, "mine");
  EXPECT_EQ(schedule.programs, rows({"0F0,0B0", "1F0,1B0"}).programs);
  EXPECT_EQ(title(schedule), "mine(ranks=2, stages=2, microbatches=1)");
  EXPECT_EQ(parse_cells({{"0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"}}, "x").programs,
            rows({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}).programs);
}

TEST(Cells, OfATableAreIdleWhereTheyAreEmpty) {
  const Cells cells = {{"0F0", "", "0B0", ""}, {"", "1F0", "1B0"}};
  EXPECT_EQ(parse_table(cells, "x"), parse_timetable("0F0,,0B0,\n,1F0,1B0\n", "x"));
  EXPECT_THROW(parse_table({{"", ""}}, "x"), ParseError);
}

std::string refusal_of(const Cells& cells) {
  try {
    parse_cells(cells, "mine");
  } catch (const ParseError& error) {
    return error.message();
  }
  return "accepted";
}

TEST(Cells, RefusalsNameRankAndAction) {
  EXPECT_EQ(refusal_of({{"0F0"}, {"1F0", "1F0,1F1"}}),
            "mine: rank 1 action 1: action \"1F0,1F1\" column 4: expected the end of the action, "
            "found \",1F1\"");
  EXPECT_EQ(refusal_of({}), "mine: no actions; expected the actions of each rank");
  EXPECT_EQ(refusal_of({{"0F0", ""}}),
            "mine: rank 0 action 1: action \"\" column 1: expected a stage number, found the end");
}

}  // namespace
}  // namespace penstock::schedule
