// Parts that are updated together, and then let go of, before the next.
//
// Masters, offloaded states and an Update go by them, and memory/ counts by them.  Knows no
// tensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::partition {

// Elements that an optimizer updates, or reads ahead, together, unless options say otherwise.
inline constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 22;

// Parts that follow each other.
struct PartRun {
  std::size_t first = 0;
  std::size_t end = 0;
};

// Cuts all parts into runs of about so many elements: one has more only where a part has.
inline std::vector<PartRun> part_runs(const std::vector<std::int64_t>& sizes,
                                      std::int64_t elements) {
  std::vector<PartRun> runs;
  std::int64_t room = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (runs.empty() || sizes[i] > room) {
      runs.push_back({.first = i});
      room = elements;
    }
    runs.back().end = i + 1;
    room -= sizes[i];
  }
  return runs;
}

}  // namespace penstock::partition
