// Measures what the layers of a model do to memory, by running one microbatch through each of them,
// one layer at a time.
//
// run/ tells a run's memory from it.  Holds one layer at a time, trains nothing, and runs layers of
// one type and number of parameters once.  A layer that ranks share runs as the first of them has
// it: shares of others are no larger.  Knows no stages and no schedule.
// Shapes: the inputs of a microbatch, as the first layer takes them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "penstock/plan/memory/layer_memory.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/probe/meter.h"

namespace penstock::probe {

using memory::ModelMemory;

// The device on which layers run, and what counts its memory.
struct Place {
  c10::Device device = at::kCPU;
  std::function<std::unique_ptr<Meter>()> make_meter;
};

// Host memory, as torch's allocator gives it out.
Place host();

// Hears what is run next: "layer "fc"", or "the loss".
using Begins = std::function<void(const std::string& what)>;

struct Probing {
  std::int64_t seed = 0;
  at::ScalarType type = at::kFloat;  // Type of floating parameters and buffers, unless kFloat.
  std::int32_t sharers = 1;          // Number of ranks that share each layer.
  Place place = host();
  Begins begins = [](const std::string&) {};
};

// Throws: whatever a layer or the loss throws.  REQUIRES: layers are ones of penstock/nn's, which
// need no engine; where ranks share layers, these fit together (train/shared_layers.h).
ModelMemory probe_model(const std::vector<nn::LayerSpec>& model, const nn::Values& inputs,
                        const nn::Values& targets, const nn::Loss& loss, const Probing& probing);

}  // namespace penstock::probe
