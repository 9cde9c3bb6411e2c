#include "penstock/runtime/train/model_order.h"

#include <set>
#include <string>

namespace penstock::train {

ModelOrder::ModelOrder(const std::vector<stage::Stage>& stages, std::int64_t layers,
                       const std::function<void(const at::Tensor&)>& sum_over_model) {
  std::vector<CountedLayer> counted;
  std::set<std::string> names;
  for (const stage::Stage& stage : stages) {
    std::size_t next = 0;
    const auto take = [&] {
      const std::size_t i = next++;
      const bool is_new = names.insert(stage.parameters()[i].name).second;
      if (is_new) parameters_.push_back(stage.parameters()[i]);
      return stage.layers().is_copy(i) ? std::nullopt : std::optional(parameters_.size() - 1);
    };
    std::int64_t layer = stage.layers().first();
    for (const std::int64_t trained : stage.layers().trained_per_layer()) {
      CountedLayer& of_layer = counted.emplace_back(CountedLayer{.index = layer++});
      while (std::ssize(of_layer.parameters) < trained) {
        if (const auto number = take()) of_layer.parameters.push_back(*number);
      }
    }
    while (next < stage.parameters().size()) take();  // Copies of other layers'.
  }
  places_.emplace(layers, counted, sum_over_model);
}

}  // namespace penstock::train
