#include "penstock/runtime/parameters/squared_norms.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <map>
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

// Subtrees, left to right and none inside of another, which grow together.
class Growing {
 public:
  void add(Subtree subtree, double sum) {
    open_.emplace_back(subtree, sum);
    while (open_.size() > 1) {
      const auto& [left, left_sum] = open_[open_.size() - 2];
      const auto& [right, right_sum] = open_.back();
      const bool are_neighbours = left.size == right.size && left.first % (2 * left.size) == 0;
      if (!are_neighbours) break;
      const std::pair both(Subtree{left.first, 2 * left.size}, left_sum + right_sum);
      open_.resize(open_.size() - 2);
      open_.push_back(both);
    }
  }
  const std::vector<std::pair<Subtree, double>>& all() const { return open_; }

 private:
  std::vector<std::pair<Subtree, double>> open_;
};

// Elements that a device squares at once, in doubles.
constexpr std::int64_t kAtOnce = std::int64_t{1} << 24;

// The blocks' sums.  Halves are added to halves: no kernel chooses an order.
at::Tensor squares_of_blocks(const at::Tensor& flat) {
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
  return sums.flatten();
}

// Sums that a device has, and which subtrees of which slice they are.
class There {
 public:
  // Adds up the blocks of a part of slice `slice`, from its parameter's element `first` on, to the
  // largest subtrees that they make.
  void add(std::size_t slice, const at::Tensor& flat, std::int64_t first) {
    at::Tensor sums = squares_of_blocks(flat);
    std::int64_t at = first / kBlock, size = 1;
    const auto add_root = [&](std::int64_t index) {
      subtrees_.emplace_back(slice, Subtree{(at + index) * size, size});
      sums_.push_back(sums.narrow(0, index, 1));
    };
    for (; sums.numel() > 0; size *= 2) {
      const std::int64_t is_odd = at % 2;
      if (is_odd == 1) add_root(0);
      const std::int64_t pairs = (sums.numel() - is_odd) / 2, even = is_odd + 2 * pairs;
      if (even < sums.numel()) add_root(even);
      const at::Tensor both = sums.narrow(0, is_odd, 2 * pairs).view({pairs, 2});
      sums = pairs > 0 ? both.select(1, 0) + both.select(1, 1) : both.select(1, 0);
      at = (at + is_odd) / 2;
    }
  }

  // Brings the sums to the host, and gives each of the slices its own.
  void take(std::vector<std::vector<double>>& of_slices) {
    if (sums_.empty()) return;
    const at::Tensor here = at::cat(sums_).cpu();
    std::vector<std::map<Subtree, double>> sorted(of_slices.size());
    for (std::size_t i = 0; i < subtrees_.size(); ++i) {
      const auto& [slice, subtree] = subtrees_[i];
      sorted[slice][subtree] = here.const_data_ptr<double>()[i];
    }
    for (std::size_t slice = 0; slice < sorted.size(); ++slice) {
      Growing growing;
      for (const auto& [subtree, sum] : sorted[slice]) growing.add(subtree, sum);
      for (const auto& [subtree, sum] : growing.all()) of_slices[slice].push_back(sum);
    }
  }

 private:
  std::vector<std::pair<std::size_t, Subtree>> subtrees_;
  std::vector<at::Tensor> sums_;
};

std::vector<double> squares_here(const at::Tensor& flat, std::int64_t first) {
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

}  // namespace

std::int64_t count_subtrees(const Cut& cut) { return std::ssize(subtrees_of(cut)); }

std::vector<std::vector<double>> subtree_squares(const std::vector<GradientSlice>& slices) {
  std::vector<std::vector<double>> sums(slices.size());
  There there;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const at::Tensor flat = slices[i].values.contiguous().flatten();
    if (flat.is_cpu()) {
      sums[i] = squares_here(flat, slices[i].first);
      continue;
    }
    for (std::int64_t at = 0; at < flat.numel(); at += kAtOnce) {
      const std::int64_t count = std::min(kAtOnce, flat.numel() - at);
      there.add(i, flat.narrow(0, at, count), slices[i].first + at);
    }
  }
  there.take(sums);
  return sums;
}

double total_of_squares(const std::vector<Cut>& cuts, std::span<const double> subtrees) {
  Growing growing;
  std::size_t next = 0;
  for (const Cut& cut : cuts) {
    for (const Subtree& subtree : subtrees_of(cut)) growing.add(subtree, subtrees[next++]);
  }
  double total = 0.0;
  for (std::size_t i = growing.all().size(); i-- > 0;) total = growing.all()[i].second + total;
  return total;
}

}  // namespace penstock::parameters
