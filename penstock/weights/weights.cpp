#include "penstock/weights/weights.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "penstock/core/error.h"
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
  std::ifstream file(path);
  if (!file) throw CheckpointError(str("cannot read \"", path, "\": ", std::strerror(errno)));
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  std::map<std::string, std::set<std::string>> shards;
  try {
    for (const auto& [tensor, shard] : json.at("weight_map").items()) {
      const auto name = shard.get<std::string>();
      if (name.find('/') != std::string::npos || name.empty() || name.starts_with(".")) {
        throw CheckpointError(str("\"", path, "\": shard \"", name, "\" is not a plain file name"));
      }
      shards[name].insert(tensor);
    }
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(str("\"", path, "\" has no weight_map from tensors to files"));
  }
  return shards;
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
