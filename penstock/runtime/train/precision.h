// The types in which a model computes, and in which its gradients are added up.
//
// Part of the Trainer's options, which converts what the stages and the loss get.  Knows no
// optimizer: the masters of short types are in master_weights.h.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "penstock/config/config.h"
#include "penstock/runtime/nn/loss.h"
#include "penstock/runtime/nn/values.h"

namespace penstock::train {

struct Precision {
  // Type of parameters, buffers and activations: kFloat leaves them as the layers make them.
  // kBFloat16 and kHalf are short, and the optimizer updates masters in float.
  at::ScalarType type = at::kFloat;
  // Type in which gradients are added, over microbatches and replicas; absent: the parameters'.
  std::optional<at::ScalarType> sums = {};
  config::Fp16Config gradient_scale = {};  // Options of the scale that kHalf has.

  bool is_short() const { return type != at::kFloat; }
  at::ScalarType sum_type() const { return sums.value_or(type); }

  // "float", "bf16, gradients added in float".
  std::string describe() const;

  // Inputs of the model: floating ones in the short type, if any.
  nn::Values inputs(const nn::Values& values) const;
  // A loss that gets the model's short outputs in float, unless it wants them as they are.
  nn::Loss loss(nn::Loss loss) const;
};

Precision make_precision(const config::Config& config);

}  // namespace penstock::train
