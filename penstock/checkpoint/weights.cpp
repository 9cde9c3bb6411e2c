#include "penstock/checkpoint/weights.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "penstock/checkpoint/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

constexpr const char* kIndexName = "/model.safetensors.index.json";

// By shard file: the tensors that the index says it holds.
std::map<std::string, std::set<std::string>> read_index(const std::string& path) {
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

}  // namespace

std::string shard_name(std::int32_t index, std::int32_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", index + 1, count);
  return name;
}

void write_index(const std::string& folder, const Index& index) {
  std::string text =
      str("{\n  \"metadata\": {\"total_size\": ", index.total_bytes, "},\n  \"weight_map\": {\n");
  std::vector<std::string> lines;
  for (std::size_t shard = 0; shard < index.names.size(); ++shard) {
    const std::string file =
        shard_name(static_cast<std::int32_t>(shard), static_cast<std::int32_t>(index.names.size()));
    for (const std::string& name : index.names[shard]) {
      lines.push_back(str("    ", json_quote(name), ": ", json_quote(file)));
    }
  }
  text += join(lines, ",\n") + "\n  }\n}\n";
  write_atomically(folder + kIndexName, {text});
}

NamedTensors read_weights(const std::string& folder) {
  NamedTensors all;
  for (const auto& [shard, names] : read_index(folder + kIndexName)) {
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

}  // namespace penstock::checkpoint
