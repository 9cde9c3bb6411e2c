// The grid of ranks: pipe x data.
//
// make_mesh() makes it from the world size; partition, lower and train read it.  Ranks are laid out
// row-major with `data` fastest, as DeepSpeed's PipeDataParallelTopology does: rank = pipe index x
// data size + data index.  Knows no processes: a group is a list of ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::mesh {

// Sizes of the two axes; both at least 1.
struct Shape {
  std::int32_t pipe = 1;
  std::int32_t data = 1;
  friend bool operator==(const Shape&, const Shape&) = default;
};

// Position of a rank on the two axes.
struct Coordinate {
  std::int32_t pipe = 0;  // In [0, shape.pipe).
  std::int32_t data = 0;  // In [0, shape.data).
  friend bool operator==(const Coordinate&, const Coordinate&) = default;
};

class Mesh {
 public:
  const Shape& shape() const { return shape_; }
  std::int32_t world_size() const { return shape_.pipe * shape_.data; }

  // REQUIRES: rank in [0, world_size).
  Coordinate coordinate(Rank rank) const;
  // REQUIRES: the coordinate is inside the shape.
  Rank rank(const Coordinate& coordinate) const;

  // The ranks that hold the same stages as `rank`, in order of their data coordinate.
  std::vector<Rank> data_group(Rank rank) const;
  // The ranks of one model replica, in order of their pipe coordinate.
  std::vector<Rank> pipe_group(Rank rank) const;

 private:
  friend Mesh make_mesh(std::int32_t world_size, const Shape& shape);
  explicit Mesh(const Shape& shape) : shape_(shape) {}
  Shape shape_;
};

// Throws: ConfigError when pipe x data is not the world size.
Mesh make_mesh(std::int32_t world_size, const Shape& shape);

// "pipe(2) x data(2)".
std::string to_string(const Shape& shape);

}  // namespace penstock::mesh
