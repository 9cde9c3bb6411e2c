// A model's weights as a folder of safetensors files, as Hugging Face lays them out.
//
// train/ saves with it at the end of a run, and a C++ program reads weights into modules of its
// own.  docs/weights.md has the names and how other loaders map them.  Knows no optimizer state.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/files/checkpoint/model_files.h"
#include "penstock/runtime/weights/safetensors.h"

namespace torch::nn {
class Module;
}

namespace penstock::weights {

// Writes model.safetensors.index.json, which makes the shards a model; the last file written.
// Throws: CheckpointError.
void write_index(const std::string& folder, const checkpoint::ModelIndex& index);

// The tensors that the index of the folder says each shard file holds.
// Throws: CheckpointError where it is missing or is none.
std::map<std::string, std::set<std::string>> read_index(const std::string& folder);

// The shards that the index of the folder names.
// Throws: CheckpointError where it is missing or is none.
std::vector<std::string> shards_in(const std::string& folder);

// The files of the model in a folder, each with the tensors that an index says it holds, or none:
// model.safetensors; else those of the index; else the only file of the format.
// Throws: CheckpointError where there is none of these, or several files and no index.
std::map<std::string, std::set<std::string>> model_files_in(const std::string& folder);

// Reads those of a folder, or one file, if that is what `path` is.
// Throws: CheckpointError; a shard or a tensor that is missing is named.
NamedTensors read_weights(const std::string& path);

// The module's name for a tensor of another name; empty: the module does not have it.
using Renamed = std::function<std::string(const std::string& stored)>;

// Copies tensors into the parameters and buffers of those names, as their types.
// Throws: CheckpointError that lists all of the module's that are missing, all tensors that it does
// not have, and all of other shapes; the module is then as it was.
void copy_to(torch::nn::Module& module, const NamedTensors& tensors, const Renamed& renamed = {});
// The same of what read_weights(path) reads.
void copy_to(torch::nn::Module& module, const std::string& path, const Renamed& renamed = {});

}  // namespace penstock::weights
