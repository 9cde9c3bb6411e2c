// Hands out the smallest free number: colours intervals that are met in order of their start.
//
// lower() numbers buffers and transfers with it.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::lower {

class Slots {
 public:
  std::int32_t take() {
    std::size_t word = first_;
    while (word < free_.size() && free_[word] == 0) ++word;
    first_ = word;
    if (word == free_.size()) {
      if (count_ % kBits == 0) free_.push_back(0);
      return count_++;
    }
    const int bit = std::countr_zero(free_[word]);
    free_[word] &= free_[word] - 1;
    return static_cast<std::int32_t>(word) * kBits + bit;
  }
  void give_back(std::int32_t slot) {
    const auto word = static_cast<std::size_t>(slot / kBits);
    free_[word] |= std::uint64_t{1} << (slot % kBits);
    if (word < first_) first_ = word;
  }
  // The most that were out at once.
  std::int32_t count() const { return count_; }

 private:
  static constexpr std::int32_t kBits = 64;
  std::vector<std::uint64_t> free_;  // A bit for each number below count_.
  std::size_t first_ = 0;            // No word before it has a free number.
  std::int32_t count_ = 0;
};

}  // namespace penstock::lower
