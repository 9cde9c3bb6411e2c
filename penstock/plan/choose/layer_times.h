// The times of single layers' passes, for one microbatch.
//
// Step times are made of it.  The numbers come from measured costs of stages, or from the
// operations and bytes of layers and a device's speed.  Knows no layout.
// Units: seconds, bytes, operations (an addition or a multiplication) per second.
// Source: a pass takes as long as the slower of its arithmetic and its memory traffic (the roofline
// of Williams, Waterman and Patterson, 2009), or as its kernels do (devices/kernel.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/partition/partition.h"
#include "penstock/plan/choose/network.h"
#include "penstock/plan/devices/device_model.h"
#include "penstock/plan/devices/kernel.h"
#include "penstock/plan/memory/layers_file.h"
#include "penstock/plan/simulate/costs.h"

namespace penstock::choose {

// What exchanges along one axis take, of a microbatch.
struct AxisWait {
  double waited = 0.0;  // Seconds, among what a layer's passes take.
  double hidden = 0.0;  // Seconds behind computations.
  double bytes = 0.0;   // Bytes that a rank hands to others.

  AxisWait& operator+=(const AxisWait& more);
  friend AxisWait operator*(double times, const AxisWait& wait);
};

struct LayerTimes {
  double forward = 0.0;
  double backward = 0.0;
  double input = 0.0;
  double weight = 0.0;
  // Waits for ranks that share the layer, which are among the above; of a backward, too, in which
  // the layer is computed again.
  double forward_exchange = 0.0;
  double backward_exchange = 0.0;
  double input_exchange = 0.0;
  double backward_exchange_again = 0.0;
  // Waits for the ranks of other axes, which are among these.
  AxisWait context_forward, context_backward;
  AxisWait experts_forward, experts_backward;

  // What a layer that is computed again adds to its backward.
  double computing_again() const { return forward + saved_again; }
  double saved_again = 0.0;  // Seconds, below 0, that such a backward does not exchange.

  // The passes' kernels by kind, without exchanges; all 0 where nobody knows them.
  devices::KernelSeconds forward_by_kind;
  devices::KernelSeconds backward_by_kind;
};

// `kernels` prices layers whose kernels are known; the rates price all others.
struct Device {
  double flops = 0.0;  // Operations a second that a layer reaches, not the peak of a data sheet.
  double bandwidth = 0.0;  // Bytes a second of its memory.
  std::optional<devices::DeviceModel> kernels = {};
};

// Operations of a forward on one rank, by layer: two for each element of a weight and position.
// Attention adds what it does with every two positions, under a causal mask half of it, shared by
// so many ranks.
std::vector<double> forward_operations(const config::ModelConfig& model,
                                       const partition::ModelMeta& layers,
                                       const memory::MeasuredSize& size);

// The loss counts as part of the last layer.  Without exchanges.
std::vector<LayerTimes> times_on(const Device& device, const config::ModelConfig& model,
                                 const partition::ModelMeta& layers,
                                 const memory::MeasuredSize& size);

// Adds what the passes wait for exchanges between ranks that share layers.  With a device whose
// kernels are priced, computations hide what they hide in a run; else nothing hides any.
void add_exchanges(const LinkSpeed& link, const memory::MeasuredSize& size,
                   const std::optional<devices::DeviceModel>& kernels,
                   std::vector<LayerTimes>& times);

// The ranks of a layout that exchange inside of a layer, besides those that share its weights.
struct AxisGroups {
  RankGroup context;
  RankGroup experts;
};

// Adds what the passes wait for these.  What goes round hides behind the attention of a rank's own
// tokens and of those that came before; nothing hides the others.
void add_axis_exchanges(const Network& network, const AxisGroups& groups,
                        const memory::MeasuredSize& size,
                        const std::optional<devices::DeviceModel>& kernels,
                        std::vector<LayerTimes>& times);

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
