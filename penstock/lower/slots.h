// Hands out the smallest free number: colours intervals that are met in order of their start.
//
// lower() numbers buffers and transfers with it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace penstock::lower {

class Slots {
 public:
  std::int32_t take() {
    if (free_.empty()) return count_++;
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    const std::int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(std::int32_t slot) {
    free_.push_back(slot);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
  }
  // The most that were out at once.
  std::int32_t count() const { return count_; }

 private:
  std::vector<std::int32_t> free_;
  std::int32_t count_ = 0;
};

}  // namespace penstock::lower
