#include "penstock/runtime/parameters/sum_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::parameters {
namespace {

at::Tensor sum(const at::Tensor& left, const at::Tensor& right) {
  if (!left.defined()) return right;
  return right.defined() ? left + right : left;
}

at::Tensor sum_of(const Subtrees& subtrees, Subtree whole, std::int64_t count) {
  if (whole.first >= count) return {};
  if (const auto found = subtrees.find(whole); found != subtrees.end()) return found->second;
  PENSTOCK_CHECK(whole.size > 1, "tensor ", whole.first, " of ", count);
  const std::int64_t half = whole.size / 2;
  return sum(sum_of(subtrees, {whole.first, half}, count),
             sum_of(subtrees, {whole.first + half, half}, count));
}

}  // namespace

void add(Subtrees& subtrees, Subtree subtree, at::Tensor value) {
  for (;;) {
    const Subtree neighbour{subtree.first ^ subtree.size, subtree.size};
    const auto found = subtrees.find(neighbour);
    if (found == subtrees.end()) break;
    value = neighbour < subtree ? sum(found->second, value) : sum(value, found->second);
    subtrees.erase(found);
    subtree = {std::min(subtree.first, neighbour.first), 2 * subtree.size};
  }
  subtrees.emplace(subtree, std::move(value));
}

std::vector<Subtree> largest_subtrees(std::int64_t first, std::int64_t count) {
  std::vector<Subtree> largest;
  const std::int64_t end = first + count;
  while (first < end) {
    std::int64_t size = 1;
    while (first % (2 * size) == 0 && first + 2 * size <= end) size *= 2;
    largest.push_back({first, size});
    first += size;
  }
  return largest;
}

at::Tensor total(const Subtrees& subtrees, std::int64_t count) {
  const auto size = std::bit_ceil(static_cast<std::uint64_t>(count));
  return sum_of(subtrees, {0, static_cast<std::int64_t>(size)}, count);
}

}  // namespace penstock::parameters
