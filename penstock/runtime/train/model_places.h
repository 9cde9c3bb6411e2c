// The places of this rank's parameters among those of the whole model.
//
// They stand layer by layer, and within a layer in its own order.  What is summed over parameters,
// like the gradient norm, is added up in that order on every rank, so that no layout changes its
// bits.  Knows no ranks but by the sum that it is given.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace penstock::train {

// A layer that this rank has: the numbers of its parameters here, in the layer's order, without
// those that another rank counts.
struct CountedLayer {
  std::int64_t index = 0;
  std::vector<std::size_t> parameters;
};

class ModelPlaces {
 public:
  // Places in a model with `layers` layers.  Collective: `sum_over_model` adds up a tensor over all
  // ranks that count, in place.
  ModelPlaces(std::int64_t layers, const std::vector<CountedLayer>& here,
              const std::function<void(const at::Tensor&)>& sum_over_model);

  // Number of parameters of the whole model.
  std::int64_t size() const { return size_; }
  // Puts each value of a parameter that counts here, by its number, to its place in `all`, of
  // size(): each parameter of the model has one, on one rank.
  void place(std::span<const double> mine, std::span<double> all) const;

 private:
  std::vector<std::pair<std::size_t, std::size_t>> places_;  // Numbers, and where they belong.
  std::int64_t size_ = 0;
};

}  // namespace penstock::train
