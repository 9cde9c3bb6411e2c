// A layer of a model alone, for those who measure what it does.
//
// layer_probe.h and layer_timer.h run layers with it.  Layers that are alike are measured once.
// Knows no stages and no schedule.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "penstock/runtime/nn/form.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/stage/exchanges.h"
#include "penstock/runtime/stage/stage_segments.h"

namespace penstock::probe {

// How a layer is made that is alone.
struct Alone {
  std::int64_t seed = 0;
  at::ScalarType type = at::kFloat;  // Type of floating parameters and buffers, unless kFloat.
  c10::Device device = at::kCPU;
  // Exchanges with the ranks that share the layer; null: nobody does.
  std::shared_ptr<stage::Exchanges> exchanges = {};
};

struct OneLayer {
  nn::BuiltLayer built;
  std::shared_ptr<const stage::LayerParts> parts;
};

OneLayer build_alone(const std::vector<nn::LayerSpec>& model, std::size_t index,
                     const Alone& alone);

// What makes two layers alike: type, number of parameters, ties and the form of the input.
using Likeness = std::tuple<std::string, std::int64_t, std::size_t, nn::Form>;
Likeness likeness_of(const nn::LayerSpec& spec, const nn::Form& inputs);

// Zeros for outputs that take a gradient, as large as the gradients that come from behind.
nn::Values gradients_of(const nn::Values& outputs);

}  // namespace penstock::probe
