// One rank's part of a checkpoint: a safetensors file, and what the manifest says of it.
//
// Each rank writes one; manifest.h merges what they return.  Knows no tensors of torch: a piece is
// bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/files/checkpoint/manifest.h"

namespace penstock::checkpoint {

// Some elements of a box of a tensor, one after the other.
struct PieceToSave {
  std::string name;
  std::string state;  // kWeight, or the optimizer's word.
  ScalarType type = ScalarType::F32;
  Sizes shape;             // Shape of the whole tensor.
  Box box = {};            // None: all of it.
  std::int64_t first = 0;  // Index among the box's elements.
  std::int64_t count = 0;
  std::string_view bytes;  // Empty where a BytesOf has them.
};

// What a piece is called in its shard: "0.weight" for all of a parameter, "0.weight[64:128]" for
// some of its elements, "0.weight[0:4,8:16]" for a box of it, "0.weight[0:4,8:16][0:10]" for some
// elements of that, "0.weight/exp_avg" for what an optimizer keeps.  A "/" of a name is doubled.
std::string key_of(const PieceToSave& piece);

// Writes shard `index` of `count` to `folder`, and flushes it to the disk.
// Returns: the manifest of this shard alone.
// Throws: CheckpointError with the path and the system's reason; the file is not there then.
Manifest write_shard(const std::string& folder, std::size_t index, std::size_t count,
                     std::vector<PieceToSave> pieces, const std::function<void()>& advanced = {});

// The same of pieces whose bytes come from `bytes_of`, which gives those of a piece to its second
// argument in portions, one after the other.  What it throws passes through.
using BytesOf = std::function<void(const PieceToSave& piece,
                                   const std::function<void(std::string_view)>& take)>;
Manifest write_shard(const std::string& folder, std::size_t index, std::size_t count,
                     std::vector<PieceToSave> pieces, const BytesOf& bytes_of,
                     const std::function<void()>& advanced = {});

}  // namespace penstock::checkpoint
