#include "penstock/plan/partition/cut.h"

#include <algorithm>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::partition {

Interval part_of(std::int64_t size, const Share& share) {
  const std::int64_t least = size / share.of, larger = size % share.of;
  return {.first = share.index * least + std::min(share.index, larger),
          .count = least + (share.index < larger)};
}

Interval Cut::interval() const {
  const Interval units = part_of(size / fused / unit, {.index = part, .of = of});
  return {.first = units.first * unit, .count = units.count * unit};
}

Runs Cut::runs() const {
  const Interval first = interval();
  const bool is_one = fused == 1 || is_whole();
  return {.first = first.first,
          .count = is_whole() ? size : first.count,
          .times = is_one ? 1 : fused,
          .every = is_one ? 0 : size / fused};
}

Cut cut_along(const Along& along, const Sizes& shape, const Share& share) {
  const std::int64_t size = shape[along.dimension];
  PENSTOCK_CHECK(along.fused <= kRunsMax && size % (along.unit * along.fused) == 0 &&
                     share.of % along.copies == 0,
                 size, " in units of ", along.unit, ", ", along.fused, " fused, ", share.of,
                 " ranks with ", along.copies, " copies");
  const std::int64_t parts = share.of / along.copies, units = size / along.fused / along.unit;
  if (units < parts) {
    throw ConfigError(str("a parameter of shape [", join(shape, ", "), "] cannot be shared by ",
                          share.of, " ranks: along dimension ", along.dimension, " it has ", units,
                          along.unit == 1 ? str(" indices") : str(" units of ", along.unit)),
                      {str("at most ", units * along.copies, " ranks may share it")});
  }
  return {.dimension = along.dimension,
          .part = share.index / along.copies,
          .of = parts,
          .size = size,
          .unit = along.unit,
          .fused = along.fused,
          .copies = along.copies,
          .copy = share.index % along.copies};
}

Sizes shape_of_whole(Sizes part, const Cut& cut) {
  if (!cut.is_whole()) part[cut.dimension] = cut.size;
  return part;
}

Sizes shape_of_part(Sizes whole, const Cut& cut) {
  if (!cut.is_whole()) whole[cut.dimension] = cut.runs().indices();
  return whole;
}

Box box_of(const Cut& cut, const Sizes& whole) {
  if (cut.is_whole()) return {};
  Box box;
  for (const std::int64_t size : whole) box.push_back({.count = size});
  box[cut.dimension] = cut.runs();
  return box;
}

}  // namespace penstock::partition
