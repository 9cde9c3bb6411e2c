#include "penstock/mesh/mesh.h"

#include <algorithm>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"

namespace penstock::mesh {

Coordinate Mesh::coordinate(Rank rank) const {
  PENSTOCK_CHECK(rank.value >= 0 && rank.value < world_size(), "rank ", rank);
  Coordinate coordinate;
  std::int32_t rest = rank.value;
  for (std::size_t i = kEveryAxis.size(); i-- > 0;) {  // The fastest first.
    const std::int32_t size = shape_[kEveryAxis[i]];
    coordinate = coordinate.with(kEveryAxis[i], rest % size);
    rest /= size;
  }
  return coordinate;
}

Rank Mesh::rank(const Coordinate& coordinate) const {
  for (const Axis axis : kEveryAxis) {
    PENSTOCK_CHECK(coordinate[axis] >= 0 && coordinate[axis] < shape_[axis], coordinate[axis]);
  }
  return Rank(coordinate.number(shape_, kEveryAxis));
}

std::vector<Rank> Mesh::group(Rank member, std::span<const Axis> axes) const {
  std::vector<Coordinate> all = {coordinate(member)};
  for (const Axis axis : kEveryAxis) {  // The slowest first, so that ranks rise.
    if (std::ranges::find(axes, axis) == axes.end()) continue;
    std::vector<Coordinate> more;
    for (const Coordinate& each : all) {
      for (std::int32_t i = 0; i < shape_[axis]; ++i) more.push_back(each.with(axis, i));
    }
    all = std::move(more);
  }
  std::vector<Rank> ranks;
  for (const Coordinate& each : all) ranks.push_back(rank(each));
  return ranks;
}

std::int32_t Mesh::index(Rank member, Role role) const {
  return coordinate(member).number(shape_, axes_of(role));
}

std::vector<std::vector<Rank>> Mesh::groups(Role role) const {
  std::vector<std::vector<Rank>> all;
  for (std::int32_t rank = 0; rank < world_size(); ++rank) {
    if (index(Rank(rank), role) == 0) all.push_back(group(Rank(rank), role));
  }
  return all;
}

std::pair<Rank, Rank> Mesh::ends(Rank member, Role role) const {
  Coordinate first = coordinate(member);
  Coordinate last = first;
  for (const Axis axis : axes_of(role)) {
    first = first.with(axis, 0);
    last = last.with(axis, shape_[axis] - 1);
  }
  return {rank(first), rank(last)};
}

Mesh make_mesh(std::int32_t world_size, const Shape& shape) {
  for (const Axis axis : kEveryAxis) {
    if (shape[axis] >= 1) continue;
    throw ConfigError(str("mesh ", to_string(shape), ": every axis must be at least 1"));
  }
  if (shape.size() != world_size) {
    throw ConfigError(str("mesh ", to_string(shape), " needs ", shape.size(),
                          " ranks, the world has ", world_size));
  }
  return Mesh(shape);
}

Mesh make_mesh(const Shape& shape) {
  return make_mesh(static_cast<std::int32_t>(shape.size()), shape);
}

}  // namespace penstock::mesh
