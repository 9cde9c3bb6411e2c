// Sums of numbered tensors that do not depend on who adds which of them, nor when.
//
// invariant_gradients.h adds gradients with it.  The sum of tensors 0 to n - 1 is a tree with a
// leaf for each.  Above two neighbours, [0, 1], [2, 3] and so on, is their sum, above two sums
// theirs, up to the root.  What lies beyond n - 1 is left out.  A part of the tensors becomes the
// largest subtrees that it is made of; those of several parts make the same tree together.  Knows
// no ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

namespace penstock::parameters {

// The tensors below a node: `size` is a power of two, and `first` a multiple of it.
struct Subtree {
  std::int64_t first = 0;
  std::int64_t size = 1;

  friend auto operator<=>(const Subtree&, const Subtree&) = default;
};

// Sums by subtree, none inside of another.  An undefined tensor is a sum of nothing.
using Subtrees = std::map<Subtree, at::Tensor>;

// Adds the sum of a subtree, and joins it with its neighbour as long as that is there.
void add(Subtrees& subtrees, Subtree subtree, at::Tensor sum);

// The subtrees that make up the tensors [first, first + count).
std::vector<Subtree> largest_subtrees(std::int64_t first, std::int64_t count);

// The sum of tensors [0, count).  REQUIRES: `subtrees` has all of them.
at::Tensor total(const Subtrees& subtrees, std::int64_t count);

}  // namespace penstock::parameters
