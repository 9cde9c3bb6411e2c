// What the passes of one stage do to a rank's memory: layers, one after the other.
//
// rank_memory.h walks a plan with it.  Follows what stage/ does: a segment keeps its boundary, one
// that is computed again keeps its input alone; gradients of parameters come layer by layer, and
// leave for the sum over the replicas bucket by bucket while the last backward runs.
// Knows no schedule.  Units: bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/plan/memory/layer_memory.h"

namespace penstock::memory {

// Consecutive layers whose activations are kept, or computed again, together.
struct SegmentRange {
  std::size_t first = 0;
  std::size_t end = 0;
  bool is_recomputed = false;
};

// Gradients that are summed over the replicas together.
struct GradientBucket {
  std::vector<std::size_t> parameters;  // Trainable parameters of the stage, in its order.
  std::int64_t rows = 0;    // Bytes there once its first gradient is; 0: they are always there.
  std::int64_t flight = 0;  // Bytes there while its sum is under way.
};

struct StageLayers {
  std::vector<LayerMemory> layers;
  std::vector<SegmentRange> segments;  // All layers, in order.
  std::optional<LayerMemory> loss;     // Loss of the last stage.
  // Buckets in the order in which they leave; none: one replica.  A parameter in none of them is on
  // one rank alone, as experts may be.
  std::vector<GradientBucket> buckets;
  // Sums under way at most: before a bucket leaves, the sum of the one so many before it is there.
  // Absent: no limit.
  std::optional<std::size_t> sums_under_way = {};
};

// How many more bytes are there after a pass than before it.
struct Difference {
  std::int64_t activations = 0;
  std::int64_t gradients = 0;  // The parameters' own.
  std::int64_t buckets = 0;

  std::int64_t total() const { return activations + gradients + buckets; }
};

struct Pass {
  std::int64_t peak = 0;  // Bytes above its start.
  Difference after;
};

// Whether a backward is the step's first, or last, of its stage.
struct Turn {
  bool is_first = false;
  bool is_last = false;
};

// A backward's input gradient counts in its peak, and not in its difference.
class StageMemory {
 public:
  explicit StageMemory(StageLayers stage);

  std::int64_t output() const;
  std::int64_t input_gradient() const;
  // Whether F leaves the output in the stage; else it is whose it is handed to.
  bool keeps_output() const;
  // Whether I leaves the gradient of the output in the stage.
  bool half_keeps_gradient() const;

  Pass forward() const;
  Pass backward(Turn turn) const;
  Pass backward_input() const;
  Pass backward_weight(Turn turn) const;

 private:
  StageLayers stage_;  // The loss is the last layer, in a segment of its own or in the last one.
  std::vector<std::int64_t> first_parameter_;  // First parameter of each layer.
};

}  // namespace penstock::memory
