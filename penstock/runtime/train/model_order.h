// This rank's trainable parameters, in the order of the model.
//
// The Trainer adds what it sums over parameters at their places.  Knows no ranks but by the sum
// that it is given.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "penstock/runtime/stage/stage.h"
#include "penstock/runtime/train/model_places.h"

namespace penstock::train {

// Names and tensors, in an order.  Also the tensors alone, as torch::optim takes them.
class NamedParameters : public std::vector<stage::NamedParameter> {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): for calls that take a list of tensors.
  operator std::vector<at::Tensor>() const {
    std::vector<at::Tensor> tensors;
    for (const stage::NamedParameter& each : *this) tensors.push_back(each.tensor);
    return tensors;
  }
};

class ModelOrder {
 public:
  // Orders a model with `layers` layers.  Collective: `sum_over_model` adds up a tensor over the
  // ranks of a replica, in place.
  ModelOrder(const std::vector<stage::Stage>& stages, std::int64_t layers,
             const std::function<void(const at::Tensor&)>& sum_over_model);

  // Parameters in model order.  One that layers share is there once, on every rank that has one of
  // them, under the name that it has in the first.
  const NamedParameters& parameters() const { return parameters_; }
  // The places of those whose first layer this rank has.
  const ModelPlaces& places() const { return *places_; }

 private:
  NamedParameters parameters_;
  std::optional<ModelPlaces> places_;
};

}  // namespace penstock::train
