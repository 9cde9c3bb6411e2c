#include "penstock/runtime/train/layer_sizes.h"

#include <algorithm>
#include <sstream>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/nn/loss_layer.h"

namespace penstock::train {
namespace {

bool is_counted(const nn::LayerSpec& layer) { return layer.meta.parameters != nn::kNotCounted; }

}  // namespace

bool are_counted(const std::vector<nn::LayerSpec>& layers) {
  return std::ranges::all_of(layers, is_counted);
}

partition::Partition partition_of(const std::vector<nn::LayerSpec>& layers, std::int32_t stages,
                                  const partition::Method& method) {
  partition::ModelMeta in_line = nn::meta_of(layers);
  in_line.resize(static_cast<std::size_t>(nn::layers_in_line(layers)));
  partition::Partition partition = partition::partition(in_line, stages, method);
  partition.bounds.back() = std::ssize(layers);
  return partition;
}

void count_together(std::vector<nn::LayerSpec>& layers, const std::set<std::int64_t>& likely,
                    nn::LayerMaker& maker, nn::AfterCount after, comm::Communicator& communicator) {
  std::string mine;  // "3 1200 5 64": layers and their numbers of elements.
  const auto count_mine = [&] {
    for (const std::int64_t i : likely) {
      if (is_counted(layers[static_cast<std::size_t>(i)])) continue;
      mine += str(i, " ", maker.count(i, after), " ");
    }
  };
  comm::or_fail_at(communicator, [] { return ""; }, count_mine);
  for (const std::string& counted : communicator.exchange("sizes of layers", mine)) {
    std::istringstream words(counted);
    std::size_t layer = 0;
    while (words >> layer) {
      PENSTOCK_CHECK(layer < layers.size(), counted);
      words >> layers[layer].meta.parameters;
    }
  }
}

}  // namespace penstock::train
