// The segments that a stage's layers run in: one each for layers that are computed again together,
// and in parts where ranks share layers.
//
// Stage makes its own with it.  Knows no microbatches.
#pragma once
#include <memory>
#include <vector>

#include "penstock/plan/partition/segment_ranges.h"
#include "penstock/runtime/stage/exchanges.h"
#include "penstock/runtime/stage/segment.h"
#include "penstock/runtime/stage/stage_layers.h"
#include "penstock/runtime/stage/untrained.h"

namespace penstock::stage {

// `exchanges`: with the ranks that share the layers; null: nobody does.
std::vector<Segment> make_segments(const std::vector<nn::LayerSpec>& model,
                                   const StageLayers& layers,
                                   const partition::Recomputation& checkpointing,
                                   const std::shared_ptr<Exchanges>& exchanges,
                                   const std::shared_ptr<Untrained>& untrained);

}  // namespace penstock::stage
