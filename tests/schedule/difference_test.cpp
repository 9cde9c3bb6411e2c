#include "penstock/plan/schedule/difference.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/schedule/generators/generators.h"
#include "tests/support/random.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::rows;

std::string words(std::int32_t count, std::int32_t changed) {
  std::string row;
  for (std::int32_t m = 0; m < count; ++m) {
    row += str(m > 0 ? "," : "", "0F", m == changed ? 5000 : m);
  }
  return row;
}

TEST(Difference, EqualProgramsHaveNone) {
  EXPECT_EQ(difference(make_schedule("gpipe", {.ranks = 2, .microbatches = 3}),
                       make_schedule("gpipe", {.ranks = 2, .microbatches = 3})),
            "");
}

TEST(Difference, EachRankHasItsFirstDifferenceAndItsEdits) {
  EXPECT_EQ(difference(rows({"0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1"}),
                       rows({"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"})),
            "rank 1: 2 differences, the first at action 1: 1F1 | 1B0\n"
            "  1F0 [-1F1-] 1B0 {+1F1+} 1B1\n");
}

TEST(Difference, SizesAreNamedAndAMissingRankIsEmpty) {
  EXPECT_EQ(difference(rows({"0F0,0B0", "1F0"}), rows({"0F0,0B0"})),
            "ranks: 2 | 1\n"
            "stages: 2 | 1\n"
            "rank 1: 1 difference, the first at action 0: 1F0 | the end\n"
            "  [-1F0-]\n");
}

TEST(Difference, WhatIsEqualFarFromADifferenceIsLeftOut) {
  EXPECT_EQ(difference(rows({words(30, -1)}), rows({words(30, 15)})),
            "microbatches: 30 | 5001\n"
            "rank 0: 2 differences, the first at action 15: 0F15 | 0F5000\n"
            "  ... 12 equal ... 0F12 0F13 0F14 [-0F15-] {+0F5000+} 0F16 0F17 0F18 ... 11 equal "
            "...\n");
}

TEST(Difference, AnOverlappedPairIsOneCell) {
  EXPECT_EQ(difference(rows({"0F0,(0F1;0B0)OVERLAP_F_B,0B1"}), rows({"0F0,0F1,0B0,0B1"})),
            "rank 0: 3 differences, the first at action 1: (0F1;0B0)OVERLAP_F_B | 0F1\n"
            "  0F0 [-(0F1;0B0)OVERLAP_F_B-] {+0F1+} {+0B0+} 0B1\n");
}

// The edits of `text`, applied: what stands on the left and on the right.
std::pair<std::string, std::string> sides(const std::string& text) {
  std::pair<std::string, std::string> both;
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    const std::string cell = word.size() > 4 ? word.substr(2, word.size() - 4) : "";
    if (word.starts_with("[-")) {
      both.first += cell + ' ';
    } else if (word.starts_with("{+")) {
      both.second += cell + ' ';
    } else {
      both.first += word + ' ';
      both.second += word + ' ';
    }
  }
  return both;
}

TEST(Difference, TheEditsMakeOneProgramOfTheOther) {
  testing_support::Random random;
  SCOPED_TRACE(random.seed_text());
  for (int round = 0; round < 200; ++round) {
    const auto program = [&] {
      std::string row = "0F0";
      for (int i = random.between(0, 7); i > 0; --i) row += str(",0F", random.between(0, 3));
      return rows({row});
    };
    const Schedule a = program();
    const Schedule b = program();
    const std::string text = difference(a, b);
    if (a.programs == b.programs) {
      EXPECT_EQ(text, "");
      continue;
    }
    const auto [left, right] = sides(std::string(trim(text.substr(text.rfind("\n  ")))));
    EXPECT_EQ(trim(left), join(to_cells(a.programs[0]), " ")) << text;
    EXPECT_EQ(trim(right), join(to_cells(b.programs[0]), " ")) << text;
  }
}

TEST(Difference, ProgramsWithNothingInCommonAreShownInShort) {
  const Schedule a = make_schedule("gpipe", {.ranks = 1, .microbatches = 4000});
  Schedule b = a;
  std::ranges::reverse(b.programs[0]);
  const std::string text = difference(a, b);
  EXPECT_LT(text.size(), 2000u);
  EXPECT_TRUE(text.ends_with("... and more\n")) << text;
}

}  // namespace
}  // namespace penstock::schedule
