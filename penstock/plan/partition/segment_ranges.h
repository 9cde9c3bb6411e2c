// The layers of a stage that are kept, or computed again, together.
//
// Stage makes its segments from them; the memory of a run is told from them before a stage is.
// Knows layers by their types alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/plan/partition/layer_meta.h"

namespace penstock::partition {

// The layers that do without activations between forward and backward, and compute them again.
struct Recomputation {
  std::int64_t interval = 0;  // Layers that are computed again together; 0: none are.
  std::string layers = {};    // A regular expression for their types; empty: all.
};

struct SegmentRange {
  std::int64_t first = 0;  // Index in the model.
  std::int64_t end = 0;
  bool is_recomputed = false;
};

// Cuts layers [first_layer, end_layer) into runs that are computed again together, at most
// `interval` long, and those between.
// Throws: ConfigError for a regular expression that is none, or matches no layer of the model.
std::vector<SegmentRange> segment_ranges(const ModelMeta& model, std::int64_t first_layer,
                                         std::int64_t end_layer,
                                         const Recomputation& recomputation);

}  // namespace penstock::partition
