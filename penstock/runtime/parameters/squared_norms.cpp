#include "penstock/runtime/parameters/squared_norms.h"

#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/partition/ownership.h"
#include "penstock/runtime/parameters/sum_tree.h"

namespace penstock::parameters {
namespace {

constexpr std::int64_t kBlock = partition::kShardAlignment;
constexpr std::size_t kLanes = 8;

std::vector<Subtree> subtrees_of(const Cut& cut) {
  PENSTOCK_CHECK(cut.first % kBlock == 0, "a slice from ", cut.first);
  return largest_subtrees(cut.first / kBlock, (cut.count + kBlock - 1) / kBlock);
}

template <class T>
double square(T value) {
  const auto x = static_cast<double>(value);
  return x * x;
}
template <class T>
double square(c10::complex<T> value) {
  return square(value.real()) + square(value.imag());
}

// Sums up to kBlock elements: eight sums side by side, added up in pairs.
template <class T>
double squares_of_block(const T* values, std::int64_t count) {
  std::array<double, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + static_cast<std::int64_t>(kLanes) <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += square(values[i + static_cast<std::int64_t>(lane)]);
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) sums[lane] += square(values[i]);
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// Sums a subtree of blocks; `of_block` has the squares of each.
template <class OfBlock>
double squares_of_subtree(const OfBlock& of_block, std::int64_t first, std::int64_t blocks) {
  if (blocks == 1) return of_block(first);
  return squares_of_subtree(of_block, first, blocks / 2) +
         squares_of_subtree(of_block, first + blocks / 2, blocks / 2);
}

template <class OfBlock>
std::vector<double> squares_of(const Cut& cut, const OfBlock& of_block) {
  std::vector<double> sums;
  for (const Subtree& subtree : subtrees_of(cut)) {
    sums.push_back(squares_of_subtree(of_block, subtree.first - cut.first / kBlock, subtree.size));
  }
  return sums;
}

template <class T>
std::vector<double> squares_here(const at::Tensor& flat, std::int64_t first) {
  const T* values = flat.const_data_ptr<T>();
  const std::int64_t count = flat.numel();
  return squares_of({first, count}, [&](std::int64_t block) {
    return squares_of_block(values + block * kBlock, std::min(kBlock, count - block * kBlock));
  });
}

// The blocks' sums come from the device that has the values.  Halves are added to halves: no kernel
// chooses an order.
std::vector<double> squares_there(const at::Tensor& flat, std::int64_t first) {
  const std::int64_t count = flat.numel(), blocks = (count + kBlock - 1) / kBlock;
  const bool is_complex = flat.is_complex();
  const at::Tensor parts = is_complex ? at::view_as_real(flat) : flat.unsqueeze(1);
  at::Tensor sums = at::zeros({blocks * kBlock, parts.size(1)}, parts.options().dtype(at::kDouble));
  sums.narrow(0, 0, count).copy_(parts);
  sums = sums * sums;
  sums = is_complex ? sums.select(1, 0) + sums.select(1, 1) : sums.squeeze(1);
  sums = sums.view({blocks, kBlock});
  for (std::int64_t width = kBlock / 2; width > 0; width /= 2) {
    sums = sums.narrow(1, 0, width) + sums.narrow(1, width, width);
  }
  const at::Tensor here = sums.flatten().cpu();
  const auto* of_block = here.const_data_ptr<double>();
  return squares_of({first, count}, [&](std::int64_t block) { return of_block[block]; });
}

}  // namespace

std::int64_t count_subtrees(const Cut& cut) { return std::ssize(subtrees_of(cut)); }

std::vector<double> subtree_squares(const at::Tensor& slice, std::int64_t first) {
  const at::Tensor flat = slice.contiguous();
  if (!flat.is_cpu()) return squares_there(flat.flatten(), first);
  if (flat.scalar_type() == at::kDouble) return squares_here<double>(flat, first);
  if (flat.scalar_type() == at::kComplexDouble) {
    return squares_here<c10::complex<double>>(flat, first);
  }
  // Exact for the shorter types.
  if (flat.is_complex()) {
    return squares_here<c10::complex<float>>(flat.to(at::kComplexFloat), first);
  }
  return squares_here<float>(flat.to(at::kFloat), first);
}

double total_of_squares(const std::vector<Cut>& cuts, std::span<const double> subtrees) {
  std::vector<std::pair<Subtree, double>> open;  // Left to right, none inside of another.
  std::size_t next = 0;
  for (const Cut& cut : cuts) {
    for (const Subtree& subtree : subtrees_of(cut)) {
      open.emplace_back(subtree, subtrees[next++]);
      while (open.size() > 1) {
        const auto& [left, left_sum] = open[open.size() - 2];
        const auto& [right, right_sum] = open.back();
        const bool are_neighbours = left.size == right.size && left.first % (2 * left.size) == 0;
        if (!are_neighbours) break;
        const std::pair both(Subtree{left.first, 2 * left.size}, left_sum + right_sum);
        open.resize(open.size() - 2);
        open.push_back(both);
      }
    }
  }
  double total = 0.0;
  for (std::size_t i = open.size(); i-- > 0;) total = open[i].second + total;
  return total;
}

}  // namespace penstock::parameters
