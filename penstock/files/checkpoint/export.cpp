#include "penstock/files/checkpoint/export.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/adapter_files.h"
#include "penstock/files/checkpoint/convert.h"
#include "penstock/files/checkpoint/model_files.h"
#include "penstock/files/checkpoint/new_folder.h"

namespace penstock::checkpoint {
namespace {

constexpr const char* kWhat = "a model";

std::uint64_t exported_bytes(const Tensor& tensor, const ExportOptions& options) {
  return static_cast<std::uint64_t>(tensor.elements()) * bytes_of(exported_type(tensor, options));
}

// The names that an export gives its files.
bool is_of_export(std::string_view name) {
  if (name == kAdapterConfigName || name == kAdapterTensorsName) return true;
  return name.starts_with("model") &&
         (name.ends_with(kModelName.substr(std::string_view("model").size())) ||
          name == kModelIndexName);
}

std::string exported_name(const Tensor& tensor, const ExportOptions& options) {
  return options.what == Exported::Adapters ? name_in_file(tensor.name) : tensor.name;
}

SafetensorsHeader header_of(const ModelFile& file, const ExportOptions& options) {
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};
  std::uint64_t end = 0;
  for (const Tensor* tensor : file.tensors) {
    const std::uint64_t begin = end;
    end += exported_bytes(*tensor, options);
    header.entries.push_back({.name = exported_name(*tensor, options),
                              .type = exported_type(*tensor, options),
                              .shape = tensor->shape,
                              .begin = begin,
                              .end = end});
  }
  return header;
}

// Refuses a value beyond the largest one of the type.
[[noreturn]] void refuse(const Tensor& tensor, std::int64_t element, ScalarType type) {
  const std::string_view name = kScalarTypes[static_cast<std::size_t>(type)];
  throw ConfigError(
      str("element ", element, " of ", in_quotes(tensor.name), " is too large for ", name,
          ": it would become infinite"),
      {type == ScalarType::F16 ? "BF16 and F32 have larger values" : "F32 has larger values"});
}

class Exporter {
 public:
  Exporter(SavedCheckpoint& from, const ExportOptions& options,
           const std::function<void(std::uint64_t)>& advanced)
      : from_(from), options_(options), advanced_(advanced) {}

  void write(const std::string& folder, const ModelFile& file) {
    const std::string path = str(folder, "/", file.name);
    NewFile written(path, path);
    written.write(to_bytes(header_of(file, options_)));
    for (const Tensor* tensor : file.tensors) write(written, *tensor);
    written.finish();
  }

 private:
  void write(NewFile& file, const Tensor& tensor) {
    const ScalarType type = exported_type(tensor, options_);
    std::int64_t first = 0;
    from_.read_portions(tensor, 0, tensor.elements(), [&](std::string_view values) {
      if (type == tensor.type) {
        file.write(values);
      } else {
        const auto too_large = convert(values, tensor.type, type, converted_);
        if (too_large) refuse(tensor, first + static_cast<std::int64_t>(*too_large), type);
        file.write(converted_);
      }
      first += static_cast<std::int64_t>(values.size() / bytes_of(tensor.type));
      if (advanced_) advanced_(values.size());
    });
  }

  SavedCheckpoint& from_;
  const ExportOptions& options_;
  const std::function<void(std::uint64_t)>& advanced_;
  std::string converted_;
};

ModelIndex index_of(const Export& made) {
  ModelIndex index{.total_bytes = static_cast<std::int64_t>(made.bytes)};
  for (const ModelFile& file : made.files) {
    index.names.emplace_back();
    for (const Tensor* tensor : file.tensors) index.names.back().push_back(tensor->name);
  }
  return index;
}

// Its loaders would take the weights and leave the adapters: the model before the run.
void refuse_adapters(const Manifest& manifest) {
  if (!has_adapters(manifest)) return;
  throw ConfigError(
      "export: the checkpoint has low-rank adapters beside the model's weights, which a loader of "
      "the model would not apply",
      {"--adapters writes the adapters, as PEFT loads them",
       "`penstock train` with --resume, --save DIR and --set model.adapter.merge=true writes the "
       "whole model, with the adapters added"});
}

void write_text(const std::string& path, const std::string& text) {
  NewFile file(path, path);
  file.write(text);
  file.finish();
}

// What is beside the tensors' files.
void write_descriptions(const std::string& folder, const Export& made, const Manifest& manifest,
                        const ExportOptions& options) {
  if (options.what == Exported::Adapters) {
    write_text(str(folder, "/", kAdapterConfigName), to_text(adapter_config_of(manifest)));
  } else if (made.files.size() > 1) {
    write_text(str(folder, "/", kModelIndexName), to_text(index_of(made)));
  }
}

}  // namespace

ScalarType exported_type(const Tensor& tensor, const ExportOptions& options) {
  return is_convertible(tensor.type) ? options.type.value_or(tensor.type) : tensor.type;
}

std::vector<ModelFile> files_of_model(const Manifest& manifest, const ExportOptions& options) {
  PENSTOCK_CHECK(options.file_bytes_max > 0, "files of no bytes");
  const bool are_adapters = options.what == Exported::Adapters;
  const std::set<std::string> of_adapters =
      are_adapters ? parameters_of_adapters(manifest) : std::set<std::string>();
  const std::uint64_t room = are_adapters ? UINT64_MAX : options.file_bytes_max;
  std::vector<ModelFile> files;
  for (const Tensor& tensor : manifest.tensors) {
    if (tensor.state != kWeight || (are_adapters && !of_adapters.contains(tensor.name))) continue;
    const std::uint64_t bytes = exported_bytes(tensor, options);
    const bool has_room = !files.empty() && bytes <= room && files.back().bytes <= room - bytes;
    if (!has_room) files.emplace_back();
    files.back().tensors.push_back(&tensor);
    files.back().bytes += bytes;
  }
  if (files.empty()) {
    throw CheckpointError(str("the checkpoint has no ", are_adapters ? "adapters" : "weights"));
  }
  const auto count = static_cast<std::int32_t>(files.size());
  for (std::int32_t i = 0; i < count; ++i) {
    ModelFile& file = files[static_cast<std::size_t>(i)];
    file.name = are_adapters ? kAdapterTensorsName
                : count == 1 ? std::string(kModelName)
                             : model_file(i, count);
    // All are where a reader that maps the file may use them.
    std::ranges::stable_sort(file.tensors, std::ranges::greater(), [&](const Tensor* tensor) {
      return bytes_of(exported_type(*tensor, options));
    });
  }
  return files;
}

Export export_weights(SavedCheckpoint& from, const std::string& to, const ExportOptions& options,
                      const std::function<void(std::uint64_t)>& advanced) {
  if (options.what == Exported::Model) refuse_adapters(from.manifest());
  Export made{.folder = path_of_new(to, kWhat), .files = files_of_model(from.manifest(), options)};
  for (const ModelFile& file : made.files) {
    made.bytes += file.bytes;
    made.tensors += file.tensors.size();
    made.not_converted += static_cast<std::size_t>(std::ranges::count_if(
        file.tensors, [&](const Tensor* t) { return options.type && !is_convertible(t->type); }));
  }
  NewFolder folder(made.folder, kWhat, is_of_export);
  require_free(folder.folder(), made.bytes, str(kWhat, " to ", quoted_path(to)));
  try {
    Exporter exporter(from, options, advanced);
    for (const ModelFile& file : made.files) exporter.write(folder.folder(), file);
    write_descriptions(folder.folder(), made, from.manifest(), options);
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::Failure) throw;
    throw CheckpointError(error.message(), error.notes());  // Comes from core/new_file.h.
  }
  folder.finish();
  return made;
}

}  // namespace penstock::checkpoint
