// Boxes of a tensor, and consecutive elements of a box: what one rank has of what all have.
//
// Checkpoints save and read such regions, and a parameter that ranks share is cut into boxes.
// Elements are numbered in row-major order: those of the tensor, and those of a box.  Knows no
// types and no ranks.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

using Sizes = std::vector<std::int64_t>;

// Indices [first, first + count) of a dimension.
struct Interval {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend auto operator<=>(const Interval&, const Interval&) = default;
};

// Indices [first, first + count) of a dimension, and again those `every` further: so often.  A part
// of fused queries, keys and values is one of those.
struct Runs {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t times = 1;
  std::int64_t every = 0;  // More than `count`; 0 where there is one run.
  friend auto operator<=>(const Runs&, const Runs&) = default;

  std::int64_t indices() const { return count * times; }
  std::int64_t end() const { return first + (times - 1) * every + count; }
};

// More than any tensor has of a dimension.
inline constexpr std::int64_t kRunsMax = 16;

// Runs of each dimension; none at all for the whole tensor.
using Box = std::vector<Runs>;

// Elements [first, first + count) of a box.
struct Region {
  Box box = {};
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// The number of elements of a tensor of these sizes.
std::int64_t elements_of(const Sizes& sizes);
// The sizes of a box of a tensor of that shape.
Sizes sizes_of(const Box& box, const Sizes& shape);
// The box, without intervals where it is the whole tensor: boxes that are equal are equal then.
Box simplest(Box box, const Sizes& shape);
// Whether the box has the first element of the tensor.
bool has_first_element(const Box& box);
// "[0:4,2:6]", with several runs "[0:4,2:6|10:14]"; nothing for the whole tensor.
std::string to_string(const Box& box);

// Says where the elements of a box are in their tensor: in runs of equal length, in rising order.
class BoxRuns {
 public:
  BoxRuns(const Sizes& shape, const Box& box);

  struct Place {
    std::int64_t element = 0;  // Number in the tensor.
    std::int64_t left = 0;     // Elements of the run from there on.
  };
  // The place of the box's element `number`, which it has.
  Place place_of(std::int64_t number) const;
  // How many of the box's elements come before an element of the tensor.
  std::int64_t before(std::int64_t element) const;

 private:
  struct Dimension {
    std::int64_t count = 0;
    std::int64_t stride = 0;
  };
  void add_outer(const Dimension& outer);
  std::int64_t begin_of_run(std::int64_t run) const;

  std::int64_t first_ = 0;   // Number in the tensor of the box's first element.
  std::int64_t length_ = 1;  // Elements of a run.
  std::int64_t runs_ = 1;
  std::vector<Dimension> outer_;  // Dimensions outside of a run, the innermost first.
};

// Calls visit(first, count) of each run of the tensor's elements that is in the region, rising.
void for_each_run(const Sizes& shape, const Region& region,
                  const std::function<void(std::int64_t first, std::int64_t count)>& visit);

// Calls visit(in_a, in_b, count) of each run of elements that two regions have in common and that
// is one run in both, rising: numbers from the first element of either.
void for_each_common_run(
    const Sizes& shape, const Region& a, const Region& b,
    const std::function<void(std::int64_t in_a, std::int64_t in_b, std::int64_t count)>& visit);

// More than any tensor is cut along.
inline constexpr std::size_t kCutDimensionsMax = 4;
// How many dimensions some box has only a part of.
std::size_t cut_dimensions(const std::vector<Box>& boxes, const Sizes& shape);

// An element that boxes have another number of times than once.
struct Miscount {
  Sizes index;
  std::int64_t times = 0;
};
// The first such element; absent: the boxes make up the tensor.
// REQUIRES: boxes within the tensor; cut_dimensions() is at most kCutDimensionsMax.
std::optional<Miscount> first_miscount(const std::vector<Box>& boxes, const Sizes& shape);

}  // namespace penstock
