// The segments that a stage's layers run in: one each for layers that are computed again together,
// and in parts where ranks share layers.
//
// Stage makes its own with it; a probe runs one layer as a stage does.  Knows no microbatches.
#pragma once
#include <memory>
#include <vector>

#include "penstock/plan/partition/segment_ranges.h"
#include "penstock/runtime/stage/exchanges.h"
#include "penstock/runtime/stage/segment.h"
#include "penstock/runtime/stage/stage_layers.h"
#include "penstock/runtime/stage/untrained.h"

namespace penstock::stage {

// Consecutive layers as they run: in parts that follow each other, each with the border behind it.
struct LayerParts {
  std::vector<LayerRun> runs;
  Borders borders;
};

// The parts of layers of `model`, from number `first` on.  `exchanges`: with the ranks that share
// the layers; null: nobody does, and there is one part.
LayerParts layer_parts(const std::vector<nn::LayerSpec>& model, std::int64_t first,
                       const std::vector<std::shared_ptr<nn::Layer>>& layers,
                       const std::shared_ptr<Exchanges>& exchanges,
                       const std::shared_ptr<Untrained>& untrained);

// `exchanges` as above.
std::vector<Segment> make_segments(const std::vector<nn::LayerSpec>& model,
                                   const StageLayers& layers,
                                   const partition::Recomputation& checkpointing,
                                   const std::shared_ptr<Exchanges>& exchanges,
                                   const std::shared_ptr<Untrained>& untrained);

}  // namespace penstock::stage
