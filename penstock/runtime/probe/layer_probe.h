// Measures what the layers of a model do to memory, by running one microbatch through each of them,
// one layer at a time.
//
// train/ tells a run's memory from it.  Holds one layer at a time, trains nothing, and runs layers
// of one type and number of parameters once.  Knows no stages and no schedule.
// Shapes: the inputs of a microbatch, as the first layer takes them.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/plan/memory/layer_memory.h"
#include "penstock/runtime/nn/model.h"

namespace penstock::probe {

using memory::ModelMemory;

// Floating parameters and buffers are of `type`, unless that is kFloat.
// Throws: whatever a layer or the loss throws.  REQUIRES: layers are ones of penstock/nn's, which
// need no engine.
ModelMemory probe_model(const std::vector<nn::LayerSpec>& model, const nn::Values& inputs,
                        const nn::Values& targets, const nn::Loss& loss, std::int64_t seed,
                        at::ScalarType type = at::kFloat);

}  // namespace penstock::probe
