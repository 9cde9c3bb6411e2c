#include "penstock/files/checkpoint/model_files.h"

#include <array>
#include <cstdio>
#include <memory>
#include <utility>
#include <variant>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/json/unread_members.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

constexpr const char* kWeightMap = "weight_map";

constexpr auto kPassedOver = std::to_array<json::PassedOver>({
    {"metadata", "the files say how large they are, and config.json what the model is"},
});

json::Value parse_json(std::string text, const std::string& path) {
  try {
    return json::parse(
        std::make_shared<json::Source>(json::Source{.name = path, .text = std::move(text)}),
        kModelIndexBytesMax);
  } catch (const ParseError& error) {
    throw CheckpointError(error.message(), error.notes());
  }
}

const std::string& plain_file_name(const json::Value& value, const std::string& path) {
  const auto* const name = std::get_if<std::string>(&value.data);
  if (name == nullptr) {
    throw CheckpointError(str(quoted_path(path), " has no weight_map from tensors to files"));
  }
  if (name->empty() || name->starts_with(".") || name->find('/') != std::string::npos) {
    throw CheckpointError(
        str(quoted_path(path), ": shard ", in_quotes(*name), " is not a plain file name"));
  }
  return *name;
}

}  // namespace

std::string model_file(std::int32_t index, std::int32_t count, std::int32_t series) {
  char name[64];
  std::snprintf(name, sizeof name, "-%05d-of-%05d.safetensors", index + 1, count);
  return series == 1 ? str("model", name) : str("model.", series, name);
}

std::vector<std::string> model_files(const ModelIndex& index) {
  const auto count = static_cast<std::int32_t>(index.names.size());
  std::vector<std::string> names;
  for (std::int32_t i = 0; i < count; ++i) names.push_back(model_file(i, count, index.series));
  return names;
}

std::string to_text(const ModelIndex& index) {
  std::string metadata = str("\"total_size\": ", index.total_bytes);
  if (!index.config.empty()) metadata += str(", \"config\": ", trim(index.config));
  const std::vector<std::string> files = model_files(index);
  std::vector<std::string> lines;
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (const std::string& name : index.names[file]) {
      lines.push_back(str("    ", json_quote(name), ": ", json_quote(files[file])));
    }
  }
  return str("{\n  \"metadata\": {", metadata, "},\n  \"weight_map\": {\n", join(lines, ",\n"),
             "\n  }\n}\n");
}

std::map<std::string, std::set<std::string>> parse_model_index(std::string text,
                                                               const std::string& path) {
  const json::Value root = parse_json(std::move(text), path);
  const auto* const index = std::get_if<json::Value::Object>(&root.data);
  const json::Member* const found = index == nullptr ? nullptr : json::find(*index, kWeightMap);
  const auto* const map =
      found == nullptr ? nullptr : std::get_if<json::Value::Object>(&found->value.data);
  if (map == nullptr) {
    throw CheckpointError(str(quoted_path(path), " has no weight_map from tensors to files"));
  }
  for (const auto& [member, why] : json::unread_members(*index, {kWeightMap}, kPassedOver)) {
    throw CheckpointError(str(json::to_string(json::origin_of(member->value)), ": ", member->key,
                              " = ", json::found(member->value), ": ", why));
  }
  std::map<std::string, std::set<std::string>> files;
  for (const json::Member& member : *map) {
    files[plain_file_name(member.value, path)].insert(member.key);
  }
  return files;
}

}  // namespace penstock::checkpoint
