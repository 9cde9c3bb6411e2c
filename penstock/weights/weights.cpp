#include "penstock/weights/weights.h"

#include <algorithm>
#include <map>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/text.h"
#include "penstock/weights/atomic_file.h"

namespace penstock::weights {
namespace {

std::string index_of(const std::string& folder) {
  return str(folder, "/", checkpoint::kModelIndexName);
}

}  // namespace

void write_index(const std::string& folder, const checkpoint::ModelIndex& index) {
  write_atomically(index_of(folder), {checkpoint::to_text(index)});
}

std::map<std::string, std::set<std::string>> read_index(const std::string& folder) {
  const std::string path = index_of(folder);
  std::string text =
      read_foreign_file<CheckpointError>("index", path, checkpoint::kModelIndexBytesMax);
  return checkpoint::parse_model_index(std::move(text), path);
}

std::vector<std::string> shards_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [shard, tensors] : read_index(folder)) names.push_back(shard);
  return names;
}

NamedTensors read_weights(const std::string& folder) {
  NamedTensors all;
  for (const auto& [shard, names] : read_index(folder)) {
    std::set<std::string> missing = names;
    for (auto& [name, tensor] : read_safetensors(folder + "/" + shard)) {
      if (missing.erase(name) != 0) all.emplace_back(name, tensor);
    }
    if (!missing.empty()) {
      throw CheckpointError(str("\"", folder, "/", shard, "\" lacks tensor \"", *missing.begin(),
                                "\", which the index says it holds"));
    }
  }
  return all;
}

}  // namespace penstock::weights
