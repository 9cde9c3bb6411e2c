#include "penstock/runtime/train/model_places.h"

#include <ATen/ops/zeros.h>

#include <numeric>

#include "penstock/core/check.h"

namespace penstock::train {

// Each layer's number of parameters is known where it lives: the sum is the whole model.
ModelPlaces::ModelPlaces(std::int64_t layers, const std::vector<CountedLayer>& here,
                         const std::function<void(const at::Tensor&)>& sum_over_model) {
  const at::Tensor counts = at::zeros({layers}, at::kLong);
  auto* count = counts.data_ptr<std::int64_t>();
  for (const CountedLayer& layer : here) {
    PENSTOCK_CHECK(layer.index >= 0 && layer.index < layers, layer.index, " of ", layers);
    count[layer.index] += static_cast<std::int64_t>(layer.parameters.size());
  }
  sum_over_model(counts);
  size_ = std::accumulate(count, count + layers, std::int64_t{0});
  for (const CountedLayer& layer : here) {
    auto next =
        static_cast<std::size_t>(std::accumulate(count, count + layer.index, std::int64_t{0}));
    for (const std::size_t parameter : layer.parameters) places_.emplace_back(parameter, next++);
  }
}

void ModelPlaces::place(std::span<const double> mine, std::span<double> all) const {
  for (const auto& [number, place] : places_) {
    PENSTOCK_CHECK(number < mine.size() && place < all.size(), number, " at ", place);
    all[place] = mine[number];
  }
}

}  // namespace penstock::train
