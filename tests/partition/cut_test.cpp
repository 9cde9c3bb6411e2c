// What ranks have of a parameter that they share: parts that make up the whole.
#include "penstock/plan/partition/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "tests/support/message_of.h"

namespace penstock::partition {
namespace {

using testing_support::message_of;

std::vector<Interval> parts_of(std::int64_t size, std::int64_t of) {
  std::vector<Interval> parts(static_cast<std::size_t>(of));
  for (std::int64_t i = 0; i < of; ++i) {
    parts[static_cast<std::size_t>(i)] = part_of(size, {.index = i, .of = of});
  }
  return parts;
}

std::vector<Interval> intervals(const Along& along, const Sizes& shape, std::int64_t ranks) {
  std::vector<Interval> parts;
  for (std::int64_t i = 0; i < ranks; ++i) {
    parts.push_back(cut_along(along, shape, {.index = i, .of = ranks}).interval());
  }
  return parts;
}

std::string refusal(const Along& along, const Sizes& shape, std::int64_t ranks) {
  return message_of([&] { cut_along(along, shape, {.index = 0, .of = ranks}); });
}

TEST(Cut, TheFirstPartsAreTheLargerOnes) {
  EXPECT_EQ(parts_of(7, 3), (std::vector<Interval>{{0, 3}, {3, 2}, {5, 2}}));
  EXPECT_EQ(parts_of(41, 4), (std::vector<Interval>{{0, 11}, {11, 10}, {21, 10}, {31, 10}}));
  EXPECT_EQ(parts_of(41, 2), (std::vector<Interval>{{0, 21}, {21, 20}}));
  EXPECT_EQ(parts_of(8, 4), (std::vector<Interval>{{0, 2}, {2, 2}, {4, 2}, {6, 2}}));
  EXPECT_EQ(part_of(7, {}), (Interval{0, 7}));
}

TEST(Cut, PartsOfLessThanThereAreRanksAreEmptyBehindTheEnd) {
  EXPECT_EQ(parts_of(2, 4), (std::vector<Interval>{{0, 1}, {1, 1}, {2, 0}, {2, 0}}));
  EXPECT_EQ(parts_of(0, 2), (std::vector<Interval>{{0, 0}, {0, 0}}));
}

TEST(Cut, PartsFollowEachOtherAndDifferByOneAtMost) {
  for (std::int64_t size = 0; size <= 41; ++size) {
    for (std::int64_t of = 1; of <= 9; ++of) {
      SCOPED_TRACE(str(size, " over ", of));
      const std::vector<Interval> parts = parts_of(size, of);
      std::int64_t end = 0;
      for (const Interval& part : parts) {
        EXPECT_EQ(part.first, end);
        end += part.count;
      }
      EXPECT_EQ(end, size);
      EXPECT_TRUE(std::ranges::is_sorted(parts, std::greater<>(), &Interval::count));
      EXPECT_LE(parts.front().count - parts.back().count, 1);
    }
  }
}

TEST(Cut, UnitsStayTogether) {
  EXPECT_EQ(intervals({.unit = 4}, {28}, 3), (std::vector<Interval>{{0, 12}, {12, 8}, {20, 8}}));
  EXPECT_EQ(intervals({.unit = 2}, {82}, 4),
            (std::vector<Interval>{{0, 22}, {22, 20}, {42, 20}, {62, 20}}));
  EXPECT_EQ((Cut{.part = 1, .of = 2, .size = 6, .unit = 2}.interval()), (Interval{4, 2}));
}

TEST(Cut, RanksInARowHaveCopies) {
  const std::vector<Interval> parts = intervals({.unit = 2, .copies = 3}, {10}, 6);
  EXPECT_EQ(parts, (std::vector<Interval>{{0, 6}, {0, 6}, {0, 6}, {6, 4}, {6, 4}, {6, 4}}));
  EXPECT_EQ(
      cut_along({.dimension = 1, .unit = 2, .copies = 3}, {5, 10}, {.index = 4, .of = 6}),
      (Cut{.dimension = 1, .part = 1, .of = 2, .size = 10, .unit = 2, .copies = 3, .copy = 1}));
}

// As of heads of keys, where each rank has a copy of the only one.
TEST(Cut, AsManyCopiesAsRanksAreWhole) {
  const Cut cut = cut_along({.unit = 5, .copies = 4}, {5}, {.index = 3, .of = 4});
  EXPECT_TRUE(cut.is_whole());
  EXPECT_EQ(cut.interval(), (Interval{0, 5}));
  EXPECT_EQ(cut.copy, 3);
  EXPECT_EQ(shape_of_part({5}, cut), Sizes{5});
  EXPECT_EQ(box_of(cut, {5}), Box{});
}

TEST(Cut, OneRankHasTheWhole) {
  const Cut cut = cut_along({.dimension = 1}, {4, 7}, {});
  EXPECT_TRUE(cut.is_whole());
  EXPECT_EQ(cut, (Cut{.dimension = 1, .size = 7}));
  EXPECT_EQ(cut.interval(), (Interval{0, 7}));
}

TEST(Cut, MoreRanksThanUnitsAreRefusedWithTheirNumber) {
  EXPECT_EQ(refusal({}, {3, 8}, 3), "no error");
  EXPECT_EQ(refusal({}, {3, 8}, 4),
            "a parameter of shape [3, 8] cannot be shared by 4 ranks: along dimension 0 it has 3 "
            "indices\n  note: at most 3 ranks may share it");
  EXPECT_EQ(refusal({.dimension = 1}, {3, 8}, 9),
            "a parameter of shape [3, 8] cannot be shared by 9 ranks: along dimension 1 it has 8 "
            "indices\n  note: at most 8 ranks may share it");
  EXPECT_EQ(refusal({.dimension = 1, .unit = 4}, {3, 8}, 3),
            "a parameter of shape [3, 8] cannot be shared by 3 ranks: along dimension 1 it has 2 "
            "units of 4\n  note: at most 2 ranks may share it");
}

TEST(Cut, CopiesLetMoreRanksShare) {
  EXPECT_EQ(refusal({.unit = 4, .copies = 2}, {8}, 4), "no error");
  EXPECT_EQ(refusal({.unit = 4, .copies = 2}, {8}, 6),
            "a parameter of shape [8] cannot be shared by 6 ranks: along dimension 0 it has 2 "
            "units of 4\n  note: at most 4 ranks may share it");
}

// As fused queries, keys and values: a rank has its heads of each.
TEST(Cut, OfFusedOnesARankHasAPartOfEach) {
  const Along along{.dimension = 1, .unit = 2, .fused = 3};
  const Sizes shape = {5, 30};
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < 2; ++i) {
    const Cut cut = cut_along(along, shape, {.index = i, .of = 2});
    boxes.push_back(box_of(cut, shape));
    EXPECT_EQ(shape_of_part(shape, cut), (Sizes{5, i == 0 ? 18 : 12}));
    EXPECT_EQ(shape_of_whole(shape_of_part(shape, cut), cut), shape);
  }
  EXPECT_EQ(boxes[0], (Box{{0, 5}, {0, 6, 3, 10}}));
  EXPECT_EQ(boxes[1], (Box{{0, 5}, {6, 4, 3, 10}}));
  EXPECT_FALSE(first_miscount(boxes, shape));
  EXPECT_EQ(box_of(cut_along(along, shape, {}), shape), Box{});
  EXPECT_EQ(refusal(along, shape, 6),
            "a parameter of shape [5, 30] cannot be shared by 6 ranks: along dimension 1 it has 5 "
            "units of 2\n  note: at most 5 ranks may share it");
}

TEST(Cut, WhatIsNoMultipleIsABug) {
  EXPECT_DEATH(cut_along({.unit = 2, .fused = 3}, {8}, {.index = 0, .of = 2}), "3 fused");
  EXPECT_DEATH(cut_along({.unit = 3}, {8}, {.index = 0, .of = 2}), "8 in units of 3");
  EXPECT_DEATH(cut_along({.copies = 2}, {8}, {.index = 0, .of = 3}), "3 ranks with 2 copies");
}

TEST(Cut, ShapesOfPartAndWholeFollowFromEachOther) {
  for (const std::int64_t ranks : {2, 4}) {
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < ranks; ++i) {
      const Cut cut = cut_along({}, {41, 6}, {.index = i, .of = ranks});
      const Sizes part = shape_of_part({41, 6}, cut);
      EXPECT_EQ(part, (Sizes{cut.interval().count, 6}));
      EXPECT_EQ(shape_of_whole(part, cut), (Sizes{41, 6}));
      rows += part[0];
    }
    EXPECT_EQ(rows, 41);
  }
  EXPECT_EQ(shape_of_part({6, 7}, {.dimension = 1, .part = 2, .of = 3, .size = 7}), (Sizes{6, 2}));
  EXPECT_EQ(shape_of_part({6, 7}, {}), (Sizes{6, 7}));
  EXPECT_EQ(shape_of_whole({6, 7}, {}), (Sizes{6, 7}));
}

// As a checkpoint asks: each element is in one.
TEST(Cut, BoxesMakeUpTheWhole) {
  const Sizes shape = {3, 7, 2};
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < 3; ++i) {
    boxes.push_back(box_of(cut_along({.dimension = 1}, shape, {.index = i, .of = 3}), shape));
  }
  EXPECT_EQ(boxes[0], (Box{{0, 3}, {0, 3}, {0, 2}}));
  EXPECT_EQ(boxes[1], (Box{{0, 3}, {3, 2}, {0, 2}}));
  EXPECT_EQ(boxes[2], (Box{{0, 3}, {5, 2}, {0, 2}}));
  EXPECT_FALSE(first_miscount(boxes, shape));
  EXPECT_EQ(box_of({}, shape), Box{});
}

}  // namespace
}  // namespace penstock::partition
