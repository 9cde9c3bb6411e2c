// The times of single layers' passes, for one microbatch.
//
// Step times are made of it.  The numbers come from measured costs of stages, or from the
// operations and bytes of layers and a device's speed.  Knows no layout.
// Units: seconds, bytes, operations (an addition or a multiplication) per second.
// Source: a pass takes as long as the slower of its arithmetic and its memory traffic (the roofline
// of Williams, Waterman and Patterson, 2009).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/partition/partition.h"
#include "penstock/plan/memory/layer_memory.h"
#include "penstock/plan/simulate/costs.h"

namespace penstock::choose {

struct LayerTimes {
  double forward = 0.0;
  double backward = 0.0;
  double input = 0.0;
  double weight = 0.0;
};

struct Device {
  double flops = 0.0;  // Operations a second that a layer reaches, not the peak of a data sheet.
  double bandwidth = 0.0;  // Bytes a second of its memory.
};

// Operations of a forward, by layer: two for each element of a weight and position.  Attention adds
// what it does with every two positions, under a causal mask half of it.
std::vector<double> forward_operations(const config::ModelConfig& model,
                                       const partition::ModelMeta& layers,
                                       const memory::ModelMemory& memory, std::int64_t microbatch);

// The loss counts as part of the last layer.
std::vector<LayerTimes> times_on(const Device& device, const config::ModelConfig& model,
                                 const partition::ModelMeta& layers,
                                 const memory::ModelMemory& memory, std::int64_t microbatch);

// Whether costs are of the model's single layers: a stage for each.
bool are_by_layer(const simulate::Costs& costs, std::size_t layers);

// Costs of stages, in milliseconds, shared out among each stage's layers by their operations.
// Measured with microbatches of `measured` samples, they grow in proportion to `microbatch`.
// Throws: ConfigError for costs whose numbers of stages are not those of the partition.
std::vector<LayerTimes> times_of(const simulate::Costs& costs,
                                 const partition::Partition& partition,
                                 const std::vector<double>& operations, double measured,
                                 double microbatch);

// What a layer costs in a step, per microbatch: partitions balance it.
inline double in_all(const LayerTimes& times) { return times.forward + times.backward; }

}  // namespace penstock::choose
