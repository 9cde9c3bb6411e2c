// Times the passes of a model's layers on this machine, by running microbatches through each kind
// of layer, alone.
//
// `penstock profile` makes costs of it.  Kinds take turns, so that each finds caches as another one
// left them, and a slow moment of the machine meets all of them.  Trains nothing.  Knows no stages
// and no schedule.
// Units: seconds.
// Shapes: the inputs of a microbatch, as the first layer takes them; what a layer gives is the
// input of the next kind.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/runtime/nn/model.h"

namespace penstock::probe {

// The median and the quartiles of the repeats: half of them are between the quartiles.
struct Spread {
  double median = 0.0;
  double lower = 0.0;
  double upper = 0.0;
};

// The spread of some numbers.  REQUIRES: one or more.
Spread spread_of(std::vector<double> numbers);

// The times of one microbatch, as a stage runs F, B, I and W, behind another microbatch of the same
// step.
struct PassTimes {
  Spread forward;
  Spread backward;
  Spread input;  // Nothing but the walk through the graph, where no input takes a gradient.
  Spread weight;
};

struct TimedKind {
  std::string type;
  std::vector<std::int64_t> layers;  // Layers of the model, from 0.
  PassTimes times;
};

struct ModelTimes {
  std::vector<TimedKind> kinds;  // Kinds in the order of their first layers.
  PassTimes loss;
  std::int64_t repeats = 0;  // Repeats of each pass.
};

struct Timing {
  double seconds = 1.0;   // Time for each kind; at least kRepeatsMin repeats all the same.
  std::int64_t seed = 0;  // Seed of weights and random numbers.
  at::ScalarType type = at::kFloat;  // Type of floating parameters and buffers.
  std::function<void(double share)> progress = [](double) {
  };  // Told after each repeat how much is done.
};
inline constexpr std::int64_t kRepeatsMin = 5;

// Throws: whatever a layer or the loss throws.  REQUIRES: layers are ones of penstock/nn's, which
// need no engine.
ModelTimes time_model(const std::vector<nn::LayerSpec>& model, const nn::Values& inputs,
                      const nn::Values& targets, const nn::Loss& loss, const Timing& timing);

}  // namespace penstock::probe
