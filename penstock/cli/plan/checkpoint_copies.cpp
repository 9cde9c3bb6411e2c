// The files of a checkpoint written anew: export.
#include <algorithm>
#include <map>
#include <optional>

#include "penstock/cli/plan/checkpoint_commands.h"
#include "penstock/cli/plan/output.h"
#include "penstock/core/byte_size.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/export.h"

namespace penstock::cli {
namespace {

using checkpoint::ExportOptions;
using checkpoint::Manifest;
using checkpoint::SavedCheckpoint;
using checkpoint::ScalarType;

constexpr const char* kAsSaved = "as-saved";

// Absent for kAsSaved.
std::optional<ScalarType> type_to_export(const std::string& word) {
  const std::vector<std::pair<std::string, std::optional<ScalarType>>> types = {
      {"F32", ScalarType::F32},
      {"BF16", ScalarType::BF16},
      {"F16", ScalarType::F16},
      {kAsSaved, std::nullopt}};
  std::vector<std::string> words;
  for (const auto& [name, type] : types) {
    if (lower_case(name) == lower_case(word)) return type;
    words.push_back(name);
  }
  throw ConfigError(str("export: --type: expected F32, BF16, F16 or as-saved, found ",
                        in_quotes(word), suggest(word, words)));
}

std::uint64_t file_bytes_max(const std::string& word) {
  const auto bytes = parse_bytes(word);
  if (bytes && *bytes > 0) return *bytes;
  throw ConfigError(
      str("export: --max-shard-size: expected a size, such as 5GB, 512MiB or "
          "1000000, found ",
          in_quotes(word)));
}

std::string_view name_of(ScalarType type) {
  return checkpoint::kScalarTypes[static_cast<std::size_t>(type)];
}

// "26 in F32, 2 in I64".
std::string types_in(const checkpoint::Export& made, const ExportOptions& options) {
  std::map<ScalarType, std::size_t> counts;
  for (const checkpoint::ModelFile& file : made.files) {
    for (const auto* tensor : file.tensors) ++counts[exported_type(*tensor, options)];
  }
  std::vector<std::string> texts;
  for (const auto& [type, count] : counts) texts.push_back(str(count, " in ", name_of(type)));
  return join(texts, ", ");
}

std::string json_of(const checkpoint::Export& made, const SavedCheckpoint& from,
                    const ExportOptions& options) {
  std::vector<std::string> files;
  for (const checkpoint::ModelFile& file : made.files) {
    files.push_back(str("  {\"name\": ", json_quote(file.name), ", \"bytes\": ", file.bytes,
                        ", \"tensors\": ", file.tensors.size(), "}"));
  }
  return str("{\"from\": ", json_quote(from.folder()), ", \"step\": ", from.manifest().step,
             ", \"to\": ", json_quote(made.folder), ", \"type\": ",
             json_quote(options.type ? name_of(*options.type) : std::string_view(kAsSaved)),
             ", \"bytes\": ", made.bytes, ", \"tensors\": ", made.tensors,
             ", \"not_converted\": ", made.not_converted, ", \"files\": [\n", join(files, ",\n"),
             "]}\n");
}

// Bytes of the checkpoint's tensors, as they are read.
std::uint64_t bytes_to_read(const Manifest& manifest, const ExportOptions& options) {
  std::uint64_t bytes = 0;
  for (const checkpoint::ModelFile& file : files_of_model(manifest, options)) {
    for (const auto* each : file.tensors) {
      bytes += static_cast<std::uint64_t>(each->elements()) * bytes_of(each->type);
    }
  }
  return bytes;
}

}  // namespace

int run_export(const CheckpointCommand& command) {
  const ExportOptions options{
      .what = command.adapters ? checkpoint::Exported::Adapters : checkpoint::Exported::Model,
      .type = type_to_export(command.type),
      .file_bytes_max = file_bytes_max(command.shard_bytes_max)};
  SavedCheckpoint from(newest_at(command.path));
  ByteProgress progress(str("exporting ", from.folder()), bytes_to_read(from.manifest(), options));
  const checkpoint::Export made = export_weights(from, command.other, options,
                                                 [&](std::uint64_t bytes) { progress.add(bytes); });
  if (command.json) {
    write_output(json_of(made, from, options), "");
    return static_cast<int>(ExitCode::Ok);
  }
  std::string text = str(
      "exported: the ", command.adapters ? "adapters" : "weights", " of ", from.folder(), ", step ",
      from.manifest().step, "\nto: ", made.folder, ", ", mebibytes(made.bytes), " in ",
      counted(std::ssize(made.files), "file"), "\ntensors: ", types_in(made, options), "\n");
  if (made.not_converted > 0) {
    text += str("not converted: ", counted(static_cast<std::int64_t>(made.not_converted), "tensor"),
                " of other types than F32, F16 and BF16\n");
  }
  write_output(text, "");
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace penstock::cli
