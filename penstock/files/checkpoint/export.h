// The weights of a checkpoint as a model's files: what Hugging Face's tools open.
//
// `penstock checkpoint export` makes them.  All elements come from a SavedCheckpoint, so that none
// is used before it is verified; a tensor is never in memory whole.  Optimizer states and values
// stay behind.  Knows no layout and no model: names are those of the checkpoint.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/checkpoint/saved_checkpoint.h"

namespace penstock::checkpoint {

// The weights of a checkpoint that are exported.
enum class Exported : std::uint8_t {
  Model,     // All of them.
  Adapters,  // Low-rank adapters alone, as PEFT's files (adapter_files.h).
};

struct ExportOptions {
  Exported what = Exported::Model;
  // F32, BF16 or F16: the type of all weights in one of these types.  Absent: as they are saved.
  std::optional<ScalarType> type;
  // Limit on the bytes of a file's tensors, by default that of Hugging Face's tools.  A larger
  // tensor has a file of its own.
  std::uint64_t file_bytes_max = 5'000'000'000;
};

// A file of an export, and the tensors in it.
struct ModelFile {
  std::string name;
  // Points into the manifest; larger elements first, then by name.
  std::vector<const Tensor*> tensors;
  std::uint64_t bytes = 0;  // Bytes of the tensors.
  friend bool operator==(const ModelFile&, const ModelFile&) = default;
};

// The type that a tensor has in an export.
ScalarType exported_type(const Tensor& tensor, const ExportOptions& options);

// Deals the manifest's weights to files, in order of their names: model.safetensors alone, or
// model-00001-of-0000N.safetensors and so on.  The manifest has to outlive them.  Adapters are one
// file, whatever its size.
// REQUIRES: file_bytes_max > 0; is_convertible(type).
// Throws: CheckpointError for a checkpoint without such weights.
std::vector<ModelFile> files_of_model(const Manifest& manifest, const ExportOptions& options);

struct Export {
  std::string folder;            // A path of path_of_new().
  std::vector<ModelFile> files;  // Several files have an index beside them.
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;        // Bytes of the tensors.
  std::size_t not_converted = 0;  // Tensors of other types, where a type was asked for.
};

// Makes the folder `to` with the weights, flushed to the disk; it is there whole or not at all.
// `advanced` is called after each portion that is read, with its bytes.
// Throws: ConfigError where something is at `to` already, unless it is an empty folder, for a
// finite value that the type does not have, and for a model with adapters beside its weights, which
// no loader would apply; CheckpointError as SavedCheckpoint::read(), and with the path and the
// system's reason.
Export export_weights(SavedCheckpoint& from, const std::string& to, const ExportOptions& options,
                      const std::function<void(std::uint64_t)>& advanced = {});

}  // namespace penstock::checkpoint
