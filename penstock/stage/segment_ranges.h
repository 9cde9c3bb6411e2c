// Which layers of a stage are kept, or computed again, together.
//
// Stage makes its segments from them; the memory of a run is told from them before a stage is.
// Knows layers by their types alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/stage/stage.h"

namespace penstock::stage {

struct SegmentRange {
  std::int64_t first = 0;  // In the model.
  std::int64_t end = 0;
  bool is_recomputed = false;
};

// Of layers [first_layer, end_layer): runs that are computed again together, at most `interval`
// long, and those between.
// Throws: ConfigError for a regular expression that is none, or matches no layer of the model.
std::vector<SegmentRange> segment_ranges(const std::vector<nn::LayerSpec>& model,
                                         std::int64_t first_layer, std::int64_t end_layer,
                                         const Checkpointing& checkpointing);

}  // namespace penstock::stage
