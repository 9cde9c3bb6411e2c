// The grid of ranks: a shape (axes.h), and which rank is where in it.
//
// make_mesh() makes it from the world size; partition, lower and train read it.  Ranks are laid out
// row-major in the order of the axes, the last one fastest: rank = ((pipe index x data size + data
// index) x context size + context index) x tensor size + tensor index.  So the ranks that share a
// layer are neighbours.  Without context and tensor, and with tensor alone, ranks have the numbers
// that DeepSpeed's PipeDataParallelTopology and PipeModelDataParallelTopology give them.  Knows no
// processes: a group is a list of ranks.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/core/mesh/axes.h"

namespace penstock::mesh {

class Mesh {
 public:
  const Shape& shape() const { return shape_; }
  std::int32_t world_size() const { return static_cast<std::int32_t>(shape_.size()); }

  // REQUIRES: rank in [0, world_size).
  Coordinate coordinate(Rank rank) const;
  // REQUIRES: the coordinate is inside the shape.
  Rank rank(const Coordinate& coordinate) const;

  // The ranks that differ from `member` along these axes alone, and `member`, rising.
  std::vector<Rank> group(Rank member, std::span<const Axis> axes) const;
  // The ranks that have this role for `member`, rising, and which of them it is.
  std::vector<Rank> group(Rank member, Role role) const { return group(member, axes_of(role)); }
  std::int32_t index(Rank member, Role role) const;
  // The groups of all ranks that have this role for each other, by their first ranks.
  std::vector<std::vector<Rank>> groups(Role role) const;
  // The first and the last rank of that group.
  std::pair<Rank, Rank> ends(Rank member, Role role) const;

 private:
  friend Mesh make_mesh(std::int32_t world_size, const Shape& shape);
  explicit Mesh(const Shape& shape) : shape_(shape) {}
  Shape shape_;
};

// Throws: ConfigError when the axes do not make up the world.
Mesh make_mesh(std::int32_t world_size, const Shape& shape);
// Makes a mesh of as many ranks as the shape has.
Mesh make_mesh(const Shape& shape);

}  // namespace penstock::mesh
