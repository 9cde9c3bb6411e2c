// Boxes of small tensors, each compared with its elements one by one.
#include "penstock/core/box.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/random.h"

namespace penstock {
namespace {

using testing_support::Random;

const std::vector<Sizes> kShapes = {{}, {6}, {3, 4}, {4, 1, 3}, {2, 3, 2, 2}};

// Every box of a shape that has an element.
std::vector<Box> boxes_in(const Sizes& shape) {
  std::vector<Box> boxes = {{}};
  for (const std::int64_t size : shape) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (std::int64_t first = 0; first < size; ++first) {
        for (std::int64_t count = 1; first + count <= size; ++count) {
          longer.push_back(box);
          longer.back().push_back({first, count});
        }
      }
      for (const Runs& several :
           {Runs{0, 1, 2, 2}, Runs{1, 1, 2, 2}, Runs{0, 1, 3, 2}, Runs{1, 2, 2, 3}}) {
        if (several.end() > size) continue;
        longer.push_back(box);
        longer.back().push_back(several);
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

Sizes index_of(std::int64_t element, const Sizes& shape) {
  Sizes index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; element /= shape[d]) index[d] = element % shape[d];
  return index;
}

bool has(const Box& box, const Sizes& index) {
  for (std::size_t d = 0; d < box.size(); ++d) {
    const std::int64_t from_first = index[d] - box[d].first;
    const std::int64_t run = box[d].times == 1 ? 0 : from_first / box[d].every;
    const std::int64_t in_run = from_first - run * box[d].every;
    if (from_first < 0 || run >= box[d].times || in_run >= box[d].count) return false;
  }
  return true;
}

// The tensor's elements in a region, one by one.
std::vector<std::int64_t> elements_in(const Region& region, const Sizes& shape) {
  std::vector<std::int64_t> of_box;
  for (std::int64_t element = 0; element < elements_of(shape); ++element) {
    if (has(region.box, index_of(element, shape))) of_box.push_back(element);
  }
  const auto first = of_box.begin() + region.first;
  return {first, first + region.count};
}

Region some_region(const Sizes& shape, const std::vector<Box>& boxes, Random& random) {
  const Box& box = boxes[random.index_of(boxes.size())];
  const std::int64_t elements = elements_of(sizes_of(box, shape));
  const auto first = static_cast<std::int64_t>(random.index_of(static_cast<std::size_t>(elements)));
  const auto left = static_cast<std::size_t>(elements - first);
  return {simplest(box, shape), first, static_cast<std::int64_t>(random.index_of(left + 1))};
}

TEST(Box, ItsRunsAreItsElementsInOrder) {
  for (const Sizes& shape : kShapes) {
    for (const Box& box : boxes_in(shape)) {
      const Region all = {box, 0, elements_of(sizes_of(box, shape))};
      const std::vector<std::int64_t> expected = elements_in(all, shape);
      std::vector<std::int64_t> found;
      for_each_run(shape, all, [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) found.push_back(first + i);
      });
      EXPECT_EQ(found, expected) << to_string(box);
      const BoxRuns runs(shape, box);
      for (std::int64_t element = 0; element <= elements_of(shape); ++element) {
        const auto before = std::ranges::lower_bound(expected, element) - expected.begin();
        EXPECT_EQ(runs.before(element), before) << to_string(box) << " " << element;
      }
    }
  }
}

TEST(Box, CommonRunsAreTheElementsOfBoth) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (const Sizes& shape : kShapes) {
    const std::vector<Box> boxes = boxes_in(shape);
    for (int i = 0; i < 500; ++i) {
      const Region a = some_region(shape, boxes, random), b = some_region(shape, boxes, random);
      const auto in_a = elements_in(a, shape), in_b = elements_in(b, shape);
      std::vector<std::int64_t> expected, found;
      std::ranges::set_intersection(in_a, in_b, std::back_inserter(expected));
      for_each_common_run(shape, a, b, [&](std::int64_t x, std::int64_t y, std::int64_t count) {
        ASSERT_GT(count, 0);
        for (std::int64_t k = 0; k < count; ++k) {
          found.push_back(in_a.at(static_cast<std::size_t>(x + k)));
          EXPECT_EQ(found.back(), in_b.at(static_cast<std::size_t>(y + k)));
        }
      });
      EXPECT_EQ(found, expected) << to_string(a.box) << to_string(b.box);
    }
  }
}

// Cuts a box in two along a dimension, again and again.
std::vector<Box> some_tiling(const Sizes& shape, Random& random) {
  std::vector<Box> boxes = {{}};
  for (const std::int64_t size : shape) boxes.front().push_back({.count = size});
  for (int i = 0; i < 4; ++i) {
    Box& box = boxes[random.index_of(boxes.size())];
    Runs& interval = box[random.index_of(box.size())];
    if (interval.count < 2) continue;
    const auto room = static_cast<std::size_t>(interval.count - 1);
    const auto kept = static_cast<std::int64_t>(1 + random.index_of(room));
    Box other = box;
    Runs& rest = other[static_cast<std::size_t>(&interval - box.data())];
    rest = {rest.first + kept, rest.count - kept};
    interval.count = kept;
    boxes.push_back(std::move(other));
  }
  return boxes;
}

std::optional<Miscount> counted_one_by_one(const std::vector<Box>& boxes, const Sizes& shape) {
  for (std::int64_t element = 0; element < elements_of(shape); ++element) {
    const Sizes index = index_of(element, shape);
    const auto times =
        std::ranges::count_if(boxes, [&](const Box& box) { return has(box, index); });
    if (times != 1) return Miscount{index, times};
  }
  return std::nullopt;
}

// As two ranks have of three that are fused.
TEST(Box, SeveralRunsOfADimensionAreOne) {
  const Sizes shape = {2, 9};
  const std::vector<Box> boxes = {{{0, 2}, {0, 2, 3, 3}}, {{0, 2}, {2, 1, 3, 3}}};
  EXPECT_EQ(to_string(boxes[0]), "[0:2,0:2|3:5|6:8]");
  EXPECT_EQ(sizes_of(boxes[0], shape), (Sizes{2, 6}));
  EXPECT_EQ(simplest(boxes[0], shape), boxes[0]);
  EXPECT_FALSE(first_miscount(boxes, shape));
  EXPECT_EQ(first_miscount({boxes[0]}, shape)->index, (Sizes{0, 2}));
  EXPECT_EQ(first_miscount({boxes[0], boxes[1], {{0, 2}, {8, 1}}}, shape)->index, (Sizes{0, 8}));
}

// One that lacks a box, has one twice, or has another one in its place, too.
TEST(Box, TheFirstElementThatIsNotThereOnceIsFound) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  int wrong = 0;
  for (const Sizes& shape : {Sizes{6}, Sizes{4, 5}, Sizes{3, 2, 4}}) {
    const std::vector<Box> all = boxes_in(shape);
    for (int i = 0; i < 2000; ++i) {
      std::vector<Box> boxes = some_tiling(shape, random);
      const std::size_t place = random.index_of(boxes.size());
      if (i % 4 == 1) boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(place));
      if (i % 4 == 2) boxes.push_back(boxes[place]);
      if (i % 4 == 3) boxes[place] = all[random.index_of(all.size())];
      const auto expected = counted_one_by_one(boxes, shape);
      const auto found = first_miscount(boxes, shape);
      ASSERT_EQ(found.has_value(), expected.has_value());
      if (i % 4 == 0) {
        ASSERT_FALSE(found);
      }
      if (!found) continue;
      ++wrong;
      EXPECT_EQ(found->index, expected->index);
      EXPECT_EQ(found->times, expected->times);
    }
  }
  EXPECT_GT(wrong, 3000);
}

}  // namespace
}  // namespace penstock
