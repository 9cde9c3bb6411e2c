// What a rank has of a parameter that a group of ranks shares: one part of it, along a dimension.
//
// A layer that is made with a share of its weights says it of each parameter (nn/making.h); what is
// drawn, read or saved of the parameter follows from it.  ZeRO's slices are of such a part.  Knows
// no tensors and no connections.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "penstock/core/box.h"

namespace penstock::partition {

// A rank's number in a group of ranks that share weights, and their number.
struct Share {
  std::int64_t index = 0;
  std::int64_t of = 1;
  friend bool operator==(const Share&, const Share&) = default;
};

// The whole parameter, unless said.
struct Cut {
  std::size_t dimension = 0;
  std::int64_t part = 0;
  std::int64_t of = 1;
  std::int64_t size = 0;  // Size of the whole parameter along the dimension.
  friend bool operator==(const Cut&, const Cut&) = default;

  bool is_whole() const { return of == 1; }

  // The indices of the part: of sizes that differ by 1 at most, the larger ones first.
  Interval interval() const {
    const std::int64_t least = size / of, larger = size % of;
    return {.first = part * least + std::min(part, larger), .count = least + (part < larger)};
  }
};

// The cut of a parameter of that shape that gives a share its part.
inline Cut cut_along(std::size_t dimension, const Sizes& shape, const Share& share) {
  return {.dimension = dimension, .part = share.index, .of = share.of, .size = shape[dimension]};
}

// The shape of the whole parameter, or of the part, from that of the other.
inline Sizes shape_of_whole(Sizes part, const Cut& cut) {
  if (!cut.is_whole()) part[cut.dimension] = cut.size;
  return part;
}
inline Sizes shape_of_part(Sizes whole, const Cut& cut) {
  if (!cut.is_whole()) whole[cut.dimension] = cut.interval().count;
  return whole;
}

// The part as a box of the whole, whose shape is given.
inline Box box_of(const Cut& cut, const Sizes& whole) {
  if (cut.is_whole()) return {};
  Box box;
  for (const std::int64_t size : whole) box.push_back({.count = size});
  box[cut.dimension] = cut.interval();
  return box;
}

}  // namespace penstock::partition
