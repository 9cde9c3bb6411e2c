// The squares of a gradient's elements, added in one order however the parameter is cut into
// slices.  Of a complex element, that of its absolute value.
//
// The Trainer makes the gradient norm of them.  So it has the same bits for whole parameters and
// for shards of any number of ranks.  The order is a tree: blocks of 64 elements, counted from the
// parameter's start, are its leaves, and above them it is that of sum_tree.h.  A slice
// gives the largest subtrees that its blocks are made of.
// Units: elements; sums are doubles.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::parameters {

struct Cut {
  std::int64_t first = 0;  // A multiple of partition::kShardAlignment.
  std::int64_t count = 0;  // A multiple, too, unless it ends the parameter.
};

// Subtrees of a slice.
std::int64_t count_subtrees(const Cut& cut);

// A slice of a parameter's gradient, that begins at the parameter's element `first`.
struct GradientSlice {
  at::Tensor values;
  std::int64_t first = 0;
};

// The sums of the subtrees of each slice.  One copy brings those of a device to the host.
std::vector<std::vector<double>> subtree_squares(const std::vector<GradientSlice>& slices);

// The sum of squares of a whole parameter, from the subtrees of its cuts, one after the other.
// REQUIRES: the cuts are in order and without gaps, from element 0 on.
double total_of_squares(const std::vector<Cut>& cuts, std::span<const double> subtrees);

}  // namespace penstock::parameters
