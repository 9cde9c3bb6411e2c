#include "penstock/runtime/train/model_order.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

namespace penstock::train {

// Each layer's number of parameters is known where it lives: the sum is the whole model.
ModelOrder::ModelOrder(const std::vector<stage::Stage>& stages, std::int64_t layers,
                       const std::function<void(const at::Tensor&)>& sum_over_model) {
  const at::Tensor counts = at::zeros({layers}, at::kLong);
  auto* count = counts.data_ptr<std::int64_t>();
  for (const stage::Stage& stage : stages) {
    std::ranges::copy(stage.layers().trained_per_layer(), count + stage.layers().first());
  }
  sum_over_model(counts);
  size_ = std::accumulate(count, count + layers, std::int64_t{0});
  std::set<std::string> names;
  for (const stage::Stage& stage : stages) {
    std::int64_t next = std::accumulate(count, count + stage.layers().first(), std::int64_t{0});
    for (std::size_t i = 0; i < stage.parameters().size(); ++i) {
      const auto place = stage.layers().is_copy(i) ? std::nullopt : std::optional(next++);
      if (!names.insert(stage.parameters()[i].name).second) continue;
      parameters_.push_back(stage.parameters()[i]);
      places_.push_back(place);
    }
  }
}

void ModelOrder::place(std::span<const double> mine, std::span<double> all) const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i]) all[static_cast<std::size_t>(*places_[i])] = mine[i];
  }
}

}  // namespace penstock::train
