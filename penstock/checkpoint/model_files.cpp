#include "penstock/checkpoint/model_files.h"

#include <cstdio>

#include "penstock/core/text.h"

namespace penstock::checkpoint {

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

}  // namespace penstock::checkpoint
