#include "penstock/weights/weights.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
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

std::string index_of(const std::string& folder) { return str(folder, "/", kIndexName); }

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

std::string shard_name(std::int32_t index, std::int32_t count, std::int32_t series) {
  char name[64];
  std::snprintf(name, sizeof name, "-%05d-of-%05d.safetensors", index + 1, count);
  return series == 1 ? str("model", name) : str("model.", series, name);
}

std::vector<std::string> shard_names(const Index& index) {
  const auto count = static_cast<std::int32_t>(index.names.size());
  std::vector<std::string> names;
  for (std::int32_t i = 0; i < count; ++i) names.push_back(shard_name(i, count, index.series));
  return names;
}

std::string to_text(const Index& index) {
  std::string metadata = str("\"total_size\": ", index.total_bytes);
  if (!index.config.empty()) metadata += str(", \"config\": ", trim(index.config));
  const std::vector<std::string> files = shard_names(index);
  std::vector<std::string> lines;
  for (std::size_t shard = 0; shard < files.size(); ++shard) {
    for (const std::string& name : index.names[shard]) {
      lines.push_back(str("    ", json_quote(name), ": ", json_quote(files[shard])));
    }
  }
  return str("{\n  \"metadata\": {", metadata, "},\n  \"weight_map\": {\n", join(lines, ",\n"),
             "\n  }\n}\n");
}

void write_index(const std::string& folder, const Index& index) {
  write_atomically(index_of(folder), {to_text(index)});
}

std::vector<std::string> shards_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [shard, tensors] : read_index(index_of(folder))) names.push_back(shard);
  return names;
}

NamedTensors read_weights(const std::string& folder) {
  NamedTensors all;
  for (const auto& [shard, names] : read_index(index_of(folder))) {
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
