// What a rank has of a parameter that a group of ranks shares: one part of it, along a dimension.
//
// A layer that is made with a share of its weights says it of each parameter (nn/making.h); what is
// drawn, read or saved of the parameter follows from it.  ZeRO's slices are of such a part.  Knows
// no tensors and no connections.
#pragma once
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

// The indices of a share's part of so many: of sizes that differ by 1 at most, the larger ones
// first.
Interval part_of(std::int64_t size, const Share& share);

// The whole parameter, unless said.
struct Cut {
  std::size_t dimension = 0;
  std::int64_t part = 0;
  std::int64_t of = 1;
  std::int64_t size = 0;  // Size of the whole parameter along the dimension.
  std::int64_t unit = 1;  // Indices that stay together, as those of a head do.
  // The dimension is so many of equal size, one behind the other, as fused queries, keys and values
  // are.  Each is cut, and a part has some units of each.  At most kRunsMax.
  std::int64_t fused = 1;
  // Ranks in a row that have the same part, and which of them this is.
  std::int64_t copies = 1;
  std::int64_t copy = 0;
  friend bool operator==(const Cut&, const Cut&) = default;

  bool is_whole() const { return of == 1; }

  // The indices of the part in the first of those that are fused: of units whose numbers differ by
  // 1 at most, the larger ones first.
  Interval interval() const;
  // All indices of the part.
  Runs runs() const;
};

// How a parameter is cut that ranks share.
struct Along {
  std::size_t dimension = 0;
  std::int64_t unit = 1;
  std::int64_t fused = 1;
  std::int64_t copies = 1;  // Divides the number of ranks.
};

// The cut of a parameter of that shape that gives a share its part.
// Throws: ConfigError for more ranks than units, with the numbers of ranks that may share it.
Cut cut_along(const Along& along, const Sizes& shape, const Share& share);

// The shape of the whole parameter, or of the part, from that of the other.
Sizes shape_of_whole(Sizes part, const Cut& cut);
Sizes shape_of_part(Sizes whole, const Cut& cut);

// The part as a box of the whole, whose shape is given.
Box box_of(const Cut& cut, const Sizes& whole);

}  // namespace penstock::partition
