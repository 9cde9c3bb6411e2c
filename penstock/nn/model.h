// A whole model as a list of layers: what holds between them.
//
// The Trainer checks a model with it, stage/ builds its layers.  Knows no stages: ties and skips
// are said layer by layer, and mean the same wherever stages begin.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "penstock/nn/layer.h"

namespace penstock::nn {

// Throws: ConfigError that lists what is wrong: a layer's name twice, a skip that is given twice,
// taken before it is given or never, a key that ties only one layer, or one twice.
void check_model(const std::vector<LayerSpec>& model);

// By key, the layers that are tied to it, in the order of the model.
std::map<std::string, std::vector<std::int64_t>> tied_layers(const std::vector<LayerSpec>& model);

// A layer's copy of a parameter that several layers share.
struct TiedParameter {
  at::Tensor copy;
  std::string name;                  // "transformer.wte.weight": of the first of the layers.
  std::int64_t layer = 0;            // That has this copy.
  std::vector<std::int64_t> layers;  // That share it, in the order of the model.

  bool is_first() const { return layer == layers.front(); }
};

struct BuiltLayer {
  std::shared_ptr<Layer> layer;
  std::vector<TiedParameter> tied;  // By key, then as the layer names them.
};

// build() of model[index], with tied parameters as the first of their layers makes them.
// Throws: ConfigError for a tied parameter that a layer does not have, or has under two keys, and
// for two that cannot be the same.
BuiltLayer build_layer(const std::vector<LayerSpec>& model, std::int64_t seed, std::int64_t index);

// A layer's parameter as the model knows it.
struct ModelParameter {
  std::string name;  // "LAYER.PARAMETER", or that of the tied one.
  at::Tensor tensor;
  bool is_tied = false;
  bool is_copy = false;  // Of an earlier layer's.
};

// All of a built layer's, in its order; `layer_name` is that of its LayerSpec.
std::vector<ModelParameter> parameters_of(const BuiltLayer& built, const std::string& layer_name);

}  // namespace penstock::nn
