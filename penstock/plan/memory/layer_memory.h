// What one layer of the model does to a rank's memory, and launches, for one microbatch.
//
// probe/ measures it; stage_memory.h adds layers up.  Knows no stage, no schedule and no ranks.
// Units: bytes, of tensors.  A peak is above what was there when the pass began: for a backward
// what the forward keeps, and the gradient of the output.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/partition/ownership.h"
#include "penstock/plan/devices/kernel.h"
#include "penstock/plan/devices/pass.h"

namespace penstock::memory {

using partition::Parameter;

// What a pass needs at its height, besides what stays.
struct PassPeak {
  std::int64_t first = 0;  // First pass of a step: it makes the gradients of the parameters.
  std::int64_t later = 0;  // Later passes, which add to them.

  friend bool operator==(const PassPeak&, const PassPeak&) = default;
};

// Ranks that exchange inside of a layer, besides those that share its weights.
enum class LayerGroup : std::uint8_t {
  Context,  // Share the tokens of each sample.
  Experts,  // Share the experts.
};

enum class ExchangeWay : std::uint8_t {
  Gather,    // Each rank's part goes to all others; gradients of it come back in parts.
  Ring,      // Parts go round, while attention works on those that are there.
  AllToAll,  // Each rank has something for each other one.
  ByNode,    // The same, but what several ranks of a node want comes there once.
};

// An exchange with such ranks.  Bytes of Gather and Ring are those of a rank's own part, those of
// the others what a rank has for all ranks, itself among them.
struct LayerExchange {
  LayerGroup group = LayerGroup::Context;
  ExchangeWay way = ExchangeWay::Gather;
  std::int64_t copies = 1;          // AllToAll, ByNode: how often each token is in the bytes.
  std::int64_t forward_bytes = 0;   // Bytes of each exchange of a forward.
  std::int64_t forward_count = 0;   // Number of exchanges.
  std::int64_t backward_bytes = 0;  // The same of a backward.
  std::int64_t backward_count = 0;

  friend bool operator==(const LayerExchange&, const LayerExchange&) = default;
};

// What a layer takes.  Its input is the output of the layer before; the two share one tensor, or
// tuple.
struct LayerMemory {
  std::vector<Parameter> parameters;
  // How many of these, the last ones, are of experts: other ranks have the same than of the others.
  std::int64_t expert_parameters = 0;
  std::size_t first_expert() const {
    return parameters.size() - static_cast<std::size_t>(expert_parameters);
  }
  std::int64_t buffers = 0;
  std::int64_t output = 0;
  std::int64_t input_gradient = 0;  // 0: it takes none.

  // Bytes kept from F to B, or to I, besides input and output.
  std::int64_t kept = 0;
  bool keeps_input = false;
  bool keeps_output = false;
  // Bytes kept from I to W, besides input and the gradient of the output.
  std::int64_t half_kept = 0;
  bool half_keeps_input = false;
  bool half_keeps_gradient = false;

  std::int64_t forward_peak = 0;        // The output included, here and below.
  std::int64_t plain_forward_peak = 0;  // Forward without a graph.
  PassPeak backward_peak;
  std::int64_t input_peak = 0;  // Peak of I.
  PassPeak weight_peak;         // Peak of W.

  // What a rank sends to those that share the layer with it: bytes, and numbers of exchanges.
  std::int64_t forward_sent = 0;
  std::int64_t forward_exchanges = 0;
  std::int64_t backward_sent = 0;
  std::int64_t backward_exchanges = 0;

  // Exchanges along other axes; the ranks are the layout's.
  std::vector<LayerExchange> exchanges;

  // What each pass launches on a device, once the gradients are there; empty: nobody knows.
  devices::Kernels forward_kernels;
  devices::Kernels backward_kernels;
  devices::Kernels input_kernels;
  devices::Kernels weight_kernels;
  // The same, with what is exchanged in between; empty where nothing is.
  devices::Pass forward_pass;
  devices::Pass backward_pass;
  devices::Pass input_pass;

  friend bool operator==(const LayerMemory&, const LayerMemory&) = default;
};

// The memory of all layers for one size of microbatch, as one rank has them.
struct ModelMemory {
  std::vector<LayerMemory> layers;
  LayerMemory loss;
  // The layers where they are computed again, and what was gathered for them stays; empty: they
  // take the same.
  std::vector<LayerMemory> again = {};
};

}  // namespace penstock::memory
