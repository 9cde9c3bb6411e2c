// What single layers of a model take, as a file: measured once, planned with often.
//
// `penstock memory --layers` writes it, where there are tensors; `penstock plan` reads it, where
// there are none.  It says which model and which types it was measured for, because nothing else
// about it would.  Knows no layout.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/core/json/tree.h"
#include "penstock/plan/memory/layer_memory.h"
#include "penstock/plan/partition/layer_meta.h"

namespace penstock::memory {

inline constexpr std::size_t kLayersFileBytesMax = std::size_t{1} << 28;

struct MeasuredSize {
  std::int64_t microbatch = 1;  // Samples.
  std::int64_t sharers = 1;     // Ranks that share each layer.
  std::int64_t context = 1;     // Ranks that share the tokens of each sample.
  std::int64_t experts = 1;     // Ranks that share the experts of a layer.
  // Whether blocks compute again what model.activation_checkpoint = "selective" leaves out.
  bool is_selective = false;
  ModelMemory memory;
};

struct LayersFile {
  std::string made_for;  // Text of made_for().
  partition::ModelMeta model;
  std::int64_t sample_bytes = 0;  // Bytes of a sample's input and target.
  // Layers of a program that is not penstock's: their products add to the sums of gradients, and
  // one kernel updates a parameter.
  bool is_fused = false;
  std::vector<MeasuredSize> sizes;  // Each once, rising: by sharers, then by context,
                                    // experts, microbatches, then those that are selective.
};

// The keys of a configuration that the numbers depend on, with their values, in a line: two
// configurations with one text have the same layers.
std::string made_for(const config::Config& config);

// Law: read_layers() of it gives the same.
std::string to_json(const LayersFile& file);

// Throws: ParseError, with the place: a key that is missing or of another kind, a version that is
// another one, numbers of layers that differ.
LayersFile read_layers(const json::Value& json);

}  // namespace penstock::memory
