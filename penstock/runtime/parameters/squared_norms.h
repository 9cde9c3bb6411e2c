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

// The sums of the subtrees of the slice that begins at element `first` of its parameter.
std::vector<double> subtree_squares(const at::Tensor& slice, std::int64_t first);

// The sum of squares of a whole parameter, from the subtrees of its cuts, one after the other.
// REQUIRES: the cuts are in order and without gaps, from element 0 on.
double total_of_squares(const std::vector<Cut>& cuts, std::span<const double> subtrees);

}  // namespace penstock::parameters
