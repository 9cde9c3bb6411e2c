// What planning knows of a layer: names, sizes, costs, and how ranks may share it.  No weights.
//
// nn/ describes its layers with it; partition reads it to cut the model into stages.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/plan/exchange/pieces.h"

namespace penstock::partition {

struct LayerMeta {
  std::string name = {};        // Unique in the model: "transformer.h.3".
  std::string type = {};        // The class, as `type:REGEX` partitioning matches it: "Block".
  std::int64_t parameters = 0;  // Number of trainable scalars.
  // The pieces that it runs in where ranks share its weights; none: all of them compute it whole.
  exchange::Pieces pieces = {};
  exchange::Sums sums = exchange::Sums::AsTheyCome;  // Sums that its pieces make.
};

using ModelMeta = std::vector<LayerMeta>;  // Layers in forward order.

}  // namespace penstock::partition
