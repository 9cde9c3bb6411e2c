// A model's weights as a folder of safetensors files with an index, as Hugging Face lays them out.
//
// train/ saves with it at the end of a run; docs/weights.md has the names and how other loaders map
// them.  Knows no optimizer state.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/weights/safetensors.h"

namespace penstock::weights {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

// "model-00001-of-00002.safetensors": the file of shard `index` (from 0) of `count`.  A folder has
// models one after the other, whose series are different: "model.2-00001-of-00002.safetensors".
std::string shard_name(std::int32_t index, std::int32_t count, std::int32_t series = 1);

// The names in each shard, in order of the shards, and the bytes of all tensors together.
struct Index {
  std::vector<std::vector<std::string>> names;
  std::int64_t total_bytes = 0;
  std::int32_t series = 1;
  std::string config;  // JSON of what the model is made by; or empty.
};

std::vector<std::string> shard_names(const Index& index);

// What is in kIndexName.
std::string to_text(const Index& index);

// Writes model.safetensors.index.json, which makes the shards a model; the last file written.
// Throws: CheckpointError.
void write_index(const std::string& folder, const Index& index);

// The shards that the index of the folder names.
// Throws: CheckpointError where it is missing or is none.
std::vector<std::string> shards_in(const std::string& folder);

// Reads all shards that the index names.
// Throws: CheckpointError; a shard or a tensor that is missing is named.
NamedTensors read_weights(const std::string& folder);

}  // namespace penstock::weights
