// What a folder of a model has of weights: files of safetensors, indexes of shards.
//
// weights.cpp and tensor_files.cpp find a model's files with it.  Knows no tensors.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

namespace penstock::weights {

// A link that leads nowhere is there, too: opening it says so.
bool is_there(const std::string& path);

// Names of the files of safetensors, sorted, without those of an adapter.
std::vector<std::string> safetensors_in(const std::string& folder);

// The names of tensors, by file, that an index has.  Throws: CheckpointError.
std::map<std::string, std::set<std::string>> read_index_at(const std::string& path);

}  // namespace penstock::weights
