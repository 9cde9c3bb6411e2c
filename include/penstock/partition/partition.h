// The mapping of layers to stages.
//
// partition() makes it from layer metadata and a method; lower and train read it.  Stages are
// contiguous runs of layers, in order, none empty.  Knows nothing of ranks: which rank holds a
// stage is the schedule's placement.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/partition/layer_meta.h"

namespace penstock::partition {

// Stages as equal as possible in layers; the first (layers mod stages) get one more.
struct Uniform {};
// Minimises the largest stage, by trainable parameters.
struct ByParameters {};
// Minimises the largest stage, by the given cost of each layer, in any unit; none negative.
struct ByCost {
  std::vector<double> costs;
};
// bounds[s] is the first layer of stage s; the last entry is the number of layers.
struct ByBounds {
  std::vector<std::int64_t> bounds;
};
// Minimises the largest number of layers whose type matches the regex (ECMAScript, ignoring case,
// anywhere in the name); the other layers weigh nothing.
struct ByType {
  std::string regex;
};

using Method = std::variant<Uniform, ByParameters, ByCost, ByBounds, ByType>;

struct Partition {
  std::vector<std::int64_t> bounds;  // Bounds as in ByBounds: stages + 1 rising entries.

  std::int32_t stages() const { return static_cast<std::int32_t>(bounds.size()) - 1; }
  std::int64_t first_layer(StageId stage) const { return bounds[stage.index()]; }
  std::int64_t end_layer(StageId stage) const { return bounds[stage.index() + 1]; }
};

// Chooses, of the cuts that minimise the largest stage, one by this rule.  Stage after stage, the
// rest is cut as well as it can be, and among equals the stage ends soonest.  So the result depends
// on nothing but the arguments.
// Throws: ConfigError for a model without layers, more stages than layers, a regex that is
// malformed or matches nothing, bounds or costs that do not fit the layers.
Partition partition(const ModelMeta& layers, std::int32_t stages, const Method& method);

// Partition of layers that are a stage each.
Partition one_layer_each(std::int32_t layers);

// A line per stage: "stage 0: layers 0..2 (embedding .. transformer.h.1), 123456 parameters".
std::string to_string(const Partition& partition, const ModelMeta& layers);

}  // namespace penstock::partition
