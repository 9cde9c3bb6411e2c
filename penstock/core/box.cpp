#include "penstock/core/box.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "penstock/core/text.h"

namespace penstock {
namespace {

Box whole(const Sizes& shape) {
  Box box;
  for (const std::int64_t size : shape) box.push_back({.count = size});
  return box;
}

// The dimensions that some box has only a part of.
std::vector<std::size_t> cut_in(const std::vector<Box>& boxes, const Sizes& shape) {
  std::vector<std::size_t> dimensions;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto cuts = [&](const Box& box) { return !box.empty() && box[d].indices() != shape[d]; };
    if (std::ranges::any_of(boxes, cuts)) dimensions.push_back(d);
  }
  return dimensions;
}

// How much the number of boxes changes at a corner: where elements in, or behind, a box begin.
struct Change {
  std::array<std::int64_t, kCutDimensionsMax> corner = {};  // Indices along the cut dimensions.
  std::int64_t by = 0;
};

// Adds the changes at the corners of a box that has one run of each dimension.
void add_changes_of_runs(const Box& box, std::int64_t times,
                         std::span<const std::size_t> dimensions, std::vector<Change>& all) {
  const std::size_t corners = std::size_t{1} << dimensions.size();
  for (std::size_t which = 0; which < corners; ++which) {
    Change change{.by = std::popcount(which) % 2 == 0 ? times : -times};
    for (std::size_t i = 0; i < dimensions.size(); ++i) {
      const Runs& run = box[dimensions[i]];
      const bool is_end = (which >> i) % 2 == 1;
      change.corner[i] = run.first + (is_end ? run.count : 0);
    }
    all.push_back(change);
  }
}

void add_changes(Box box, std::int64_t times, std::span<const std::size_t> dimensions,
                 std::vector<Change>& all) {
  const auto several = std::ranges::find_if(box, [](const Runs& each) { return each.times > 1; });
  if (several == box.end()) return add_changes_of_runs(box, times, dimensions, all);
  const Runs runs = *several;
  for (std::int64_t i = 0; i < runs.times; ++i) {
    *several = {.first = runs.first + i * runs.every, .count = runs.count};
    add_changes(box, times, dimensions, all);
  }
}

}  // namespace

std::int64_t elements_of(const Sizes& sizes) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= size;
  return elements;
}

Sizes sizes_of(const Box& box, const Sizes& shape) {
  if (box.empty()) return shape;
  Sizes sizes;
  for (const Runs& each : box) sizes.push_back(each.indices());
  return sizes;
}

Box simplest(Box box, const Sizes& shape) {
  if (box == whole(shape)) box.clear();
  return box;
}

bool has_first_element(const Box& box) {
  return std::ranges::all_of(box, [](const Runs& each) { return each.first == 0; });
}

std::string to_string(const Box& box) {
  std::vector<std::string> texts;
  for (const Runs& each : box) {
    std::vector<std::string> runs;
    for (std::int64_t i = 0; i < each.times; ++i) {
      const std::int64_t first = each.first + i * each.every;
      runs.push_back(str(first, ":", first + each.count));
    }
    texts.push_back(join(runs, "|"));
  }
  return texts.empty() ? "" : str("[", join(texts, ","), "]");
}

BoxRuns::BoxRuns(const Sizes& shape, const Box& box) {
  std::int64_t stride = 1;
  bool is_within_run = true;
  for (std::size_t d = shape.size(); d-- > 0;) {
    const Runs here = box.empty() ? Runs{.count = shape[d]} : box[d];
    first_ += here.first * stride;
    if (is_within_run) {
      length_ *= here.count;
    } else {
      add_outer({here.count, stride});
    }
    if (here.times > 1) add_outer({here.times, here.every * stride});
    is_within_run = is_within_run && here.count == shape[d];
    stride *= shape[d];
  }
}

void BoxRuns::add_outer(const Dimension& outer) {
  outer_.push_back(outer);
  runs_ *= outer.count;
}

std::int64_t BoxRuns::begin_of_run(std::int64_t run) const {
  std::int64_t element = first_;
  for (const Dimension& each : outer_) {
    element += run % each.count * each.stride;
    run /= each.count;
  }
  return element;
}

BoxRuns::Place BoxRuns::place_of(std::int64_t number) const {
  const std::int64_t in_run = number % length_;
  return {.element = begin_of_run(number / length_) + in_run, .left = length_ - in_run};
}

std::int64_t BoxRuns::before(std::int64_t element) const {
  std::int64_t begun = 0;  // Runs that begin before the element.
  for (std::int64_t end = runs_; begun < end;) {
    const std::int64_t middle = begun + (end - begun) / 2;
    if (begin_of_run(middle) < element) {
      begun = middle + 1;
    } else {
      end = middle;
    }
  }
  if (begun == 0) return 0;
  const std::int64_t last = begun - 1;
  return last * length_ + std::min(element - begin_of_run(last), length_);
}

void for_each_run(const Sizes& shape, const Region& region,
                  const std::function<void(std::int64_t, std::int64_t)>& visit) {
  const BoxRuns runs(shape, region.box);
  const std::int64_t end = region.first + region.count;
  for (std::int64_t number = region.first; number < end;) {
    const BoxRuns::Place place = runs.place_of(number);
    const std::int64_t count = std::min(place.left, end - number);
    visit(place.element, count);
    number += count;
  }
}

void for_each_common_run(
    const Sizes& shape, const Region& a, const Region& b,
    const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& visit) {
  const BoxRuns runs_of_a(shape, a.box), runs_of_b(shape, b.box);
  const std::int64_t end_a = a.first + a.count, end_b = b.first + b.count;
  for (std::int64_t i = a.first; i < end_a;) {
    const BoxRuns::Place in_a = runs_of_a.place_of(i);
    const std::int64_t j = std::max(b.first, runs_of_b.before(in_a.element));
    if (j >= end_b) return;
    const BoxRuns::Place in_b = runs_of_b.place_of(j);
    if (in_b.element > in_a.element) {  // What comes before that is not in b.
      i = runs_of_a.before(in_b.element);
      continue;
    }
    const std::int64_t count = std::min({in_a.left, in_b.left, end_a - i, end_b - j});
    visit(i - a.first, j - b.first, count);
    i += count;
  }
}

std::size_t cut_dimensions(const std::vector<Box>& boxes, const Sizes& shape) {
  return cut_in(boxes, shape).size();
}

// How many boxes have an element is the sum of the changes at all corners that lie behind it in no
// dimension.  Those come before it in order, too.  So the first corner at which the boxes do not
// change as the tensor does is the first element that has a wrong number of them.
std::optional<Miscount> first_miscount(const std::vector<Box>& boxes, const Sizes& shape) {
  const std::vector<std::size_t> dimensions = cut_in(boxes, shape);
  const Box all = whole(shape);
  std::vector<Change> changes;
  changes.reserve((boxes.size() + 1) << dimensions.size());
  add_changes(all, -1, dimensions, changes);
  for (const Box& box : boxes) add_changes(box.empty() ? all : box, 1, dimensions, changes);
  std::ranges::sort(changes, {}, &Change::corner);
  for (std::size_t i = 0; i < changes.size();) {
    const std::size_t first = i;
    std::int64_t times = 1;
    for (; i < changes.size() && changes[i].corner == changes[first].corner; ++i) {
      times += changes[i].by;
    }
    if (times == 1) continue;
    Miscount found{.index = Sizes(shape.size(), 0), .times = times};
    for (std::size_t d = 0; d < dimensions.size(); ++d) {
      found.index[dimensions[d]] = changes[first].corner[d];
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace penstock
