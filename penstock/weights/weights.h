// A model's weights as a folder of safetensors files with an index, as Hugging Face lays them out.
//
// train/ saves with it at the end of a run; docs/weights.md has the names and how other loaders map
// them.  Knows no optimizer state.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/checkpoint/model_files.h"
#include "penstock/weights/safetensors.h"

namespace penstock::weights {

// Writes model.safetensors.index.json, which makes the shards a model; the last file written.
// Throws: CheckpointError.
void write_index(const std::string& folder, const checkpoint::ModelIndex& index);

// By shard file: the tensors that the index of the folder says it holds.
// Throws: CheckpointError where it is missing or is none.
std::map<std::string, std::set<std::string>> read_index(const std::string& folder);

// The shards that the index of the folder names.
// Throws: CheckpointError where it is missing or is none.
std::vector<std::string> shards_in(const std::string& folder);

// Reads all shards that the index names.
// Throws: CheckpointError; a shard or a tensor that is missing is named.
NamedTensors read_weights(const std::string& folder);

}  // namespace penstock::weights
