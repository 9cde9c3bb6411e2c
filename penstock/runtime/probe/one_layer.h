// A layer of a model alone, for those who measure what it does.
//
// layer_probe.h and layer_timer.h run layers with it.  Layers that are alike are measured once.
// Knows no stages and no schedule.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "penstock/runtime/nn/form.h"
#include "penstock/runtime/nn/model.h"

namespace penstock::probe {

using Function = std::function<nn::Values(const nn::Values&)>;

struct OneLayer {
  nn::BuiltLayer built;
  Function function;
};

// Floating parameters and buffers are of `type`, unless that is kFloat.
OneLayer build_alone(const std::vector<nn::LayerSpec>& model, std::size_t index, std::int64_t seed,
                     at::ScalarType type);

// What makes two layers alike: type, number of parameters, ties and the form of the input.
using Likeness = std::tuple<std::string, std::int64_t, std::size_t, nn::Form>;
Likeness likeness_of(const nn::LayerSpec& spec, const nn::Form& inputs);

// Zeros for outputs that take a gradient, as large as the gradients that come from behind.
nn::Values gradients_of(const nn::Values& outputs);

}  // namespace penstock::probe
