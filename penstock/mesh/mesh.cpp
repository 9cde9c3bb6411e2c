#include "penstock/mesh/mesh.h"

#include "penstock/core/check.h"
#include "penstock/core/error.h"

namespace penstock::mesh {

Coordinate Mesh::coordinate(Rank rank) const {
  PENSTOCK_CHECK(rank.value >= 0 && rank.value < world_size(), "rank ", rank);
  return {.pipe = rank.value / shape_.data, .data = rank.value % shape_.data};
}

Rank Mesh::rank(const Coordinate& coordinate) const {
  PENSTOCK_CHECK(coordinate.pipe >= 0 && coordinate.pipe < shape_.pipe, coordinate.pipe);
  PENSTOCK_CHECK(coordinate.data >= 0 && coordinate.data < shape_.data, coordinate.data);
  return Rank(coordinate.pipe * shape_.data + coordinate.data);
}

std::vector<Rank> Mesh::data_group(Rank member) const {
  const Coordinate at = coordinate(member);
  std::vector<Rank> group;
  for (std::int32_t data = 0; data < shape_.data; ++data) {
    group.push_back(rank({.pipe = at.pipe, .data = data}));
  }
  return group;
}

std::vector<Rank> Mesh::pipe_group(Rank member) const {
  const Coordinate at = coordinate(member);
  std::vector<Rank> group;
  for (std::int32_t pipe = 0; pipe < shape_.pipe; ++pipe) {
    group.push_back(rank({.pipe = pipe, .data = at.data}));
  }
  return group;
}

Mesh make_mesh(std::int32_t world_size, const Shape& shape) {
  if (shape.pipe < 1 || shape.data < 1) {
    throw ConfigError(str("mesh ", to_string(shape), ": both axes must be at least 1"));
  }
  if (std::int64_t{shape.pipe} * shape.data != world_size) {
    throw ConfigError(str("mesh ", to_string(shape), " needs ",
                          std::int64_t{shape.pipe} * shape.data, " ranks, the world has ",
                          world_size));
  }
  return Mesh(shape);
}

std::string to_string(const Shape& shape) {
  return str("pipe(", shape.pipe, ") x data(", shape.data, ")");
}

}  // namespace penstock::mesh
