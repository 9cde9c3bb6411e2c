#include "penstock/files/data/permutation.h"

#include <cmath>

#include "penstock/core/check.h"
#include "penstock/core/text.h"

namespace penstock::data {
namespace {

constexpr std::uint64_t kRounds = 8;  // Each changes one half.

// The smallest a with a x a >= size.
std::uint64_t root_above(std::uint64_t size) {
  auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(size)));
  while (root * root < size) ++root;
  while ((root - 1) * (root - 1) >= size) --root;
  return root;
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t key)
    : size_(static_cast<std::uint64_t>(size)), key_(key) {
  PENSTOCK_CHECK(size >= 1 && size <= std::int64_t{1} << 62, size);
  low_ = root_above(size_);
  high_ = (size_ + low_ - 1) / low_;
}

std::uint64_t Permutation::network(std::uint64_t number) const {
  std::uint64_t low = number % low_;
  std::uint64_t high = number / low_;
  for (std::uint64_t round = 0; round < kRounds; round += 2) {
    low = (low + mix(key_ ^ mix(high * kRounds + round)) % low_) % low_;
    high = (high + mix(key_ ^ mix(low * kRounds + round + 1)) % high_) % high_;
  }
  return low + low_ * high;
}

std::int64_t Permutation::at(std::int64_t place) const {
  PENSTOCK_CHECK(place >= 0 && place < size(), place, " of ", size_);
  auto number = static_cast<std::uint64_t>(place);
  do {
    number = network(number);  // Its cycle comes back below size_, where it came from.
  } while (number >= size_);
  return static_cast<std::int64_t>(number);
}

}  // namespace penstock::data
