// A model's weights as a folder of safetensors files with an index, as Hugging Face lays them out.
//
// train/ saves with it at the end of a run; docs/weights.md has the names and how other loaders map
// them.  Knows no optimizer state.
#pragma once
#include <string>
#include <vector>

#include "penstock/checkpoint/safetensors.h"

namespace penstock::checkpoint {

// "model-00001-of-00002.safetensors": the file of shard `index` (from 0) of `count`.
std::string shard_name(std::int32_t index, std::int32_t count);

// The names in each shard, in order of the shards, and the bytes of all tensors together.
struct Index {
  std::vector<std::vector<std::string>> names;
  std::int64_t total_bytes = 0;
};

// Writes model.safetensors.index.json, which makes the shards a model; the last file written.
// Throws: CheckpointError.
void write_index(const std::string& folder, const Index& index);

// Reads all shards that the index names.
// Throws: CheckpointError; a shard or a tensor that is missing is named.
NamedTensors read_weights(const std::string& folder);

}  // namespace penstock::checkpoint
