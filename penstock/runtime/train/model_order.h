// This rank's trainable parameters, and their places among those of the whole model.
//
// The Trainer adds what it sums over parameters, like the gradient norm, in model order on every
// rank, so that no layout changes its bits.  Knows no ranks but by the sum that it is given.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "penstock/runtime/stage/stage.h"

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

  // Number of parameters of the whole model.
  std::int64_t size() const { return size_; }
  // Puts what this rank has of each of parameters() to its place in `all`, of size(): each
  // parameter of the model has one, on one rank.
  void place(std::span<const double> mine, std::span<double> all) const;

 private:
  NamedParameters parameters_;
  // None, where another rank has an earlier layer with that parameter.
  std::vector<std::optional<std::int64_t>> places_;
  std::int64_t size_ = 0;
};

}  // namespace penstock::train
