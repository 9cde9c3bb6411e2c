// The layers of a model in the sizes that layouts give them, each made once: what they take, how
// long they take, and how they are cut into stages.
//
// The planner and its bounds ask it.  Layers that are alike have one number, and so do stages of
// such layers.  A layout of a hundred stages has a handful of numbers, and what is worked out for
// one stage holds for all of its number.
// Thread safety: none.  Units: seconds, bytes.
#pragma once
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/partition/partition.h"
#include "penstock/plan/choose/layer_times.h"
#include "penstock/plan/choose/layout.h"
#include "penstock/plan/memory/layer_memory.h"

namespace penstock::choose {

struct Request;

// Layers of one size.  Their memory is without kernels and exchanges, which are in the times.
struct SizedLayers {
  memory::ModelMemory memory;
  std::vector<LayerTimes> times;
  // Numbers by layer.  Layers of one number have like parameters, or take as much of everything.
  std::vector<std::int32_t> parameters_alike;
  std::vector<std::int32_t> all_alike;
  // Whether a layer's output takes no more than the gradient that comes back for it.
  bool hands_on_evenly = true;
};

// Stages that are alike.
struct LikeStages {
  StageId first;  // The first of them.
  std::int32_t count = 0;
  std::int32_t parameters = 0;  // Number of all stages, of all sizes, that have such parameters.
  std::int32_t all = 0;         // The same of those that take as much of everything.
};

// The partition that balances the stages' work.
struct BalancedStages {
  partition::Partition partition;
  std::vector<LikeStages> kinds;
  std::vector<std::size_t> kind_of;  // Index in `kinds`, by stage.
};

class LayerSizes {
 public:
  // `request` outlives this.
  explicit LayerSizes(const Request& request);

  // What they return stays where it is.
  const SizedLayers& layers_of(const Layout& layout);
  const BalancedStages& balanced(const Layout& layout);

 private:
  // What a layout's layers depend on: the size of a microbatch, tensor, context, experts,
  // selective.
  using Size = std::tuple<std::int64_t, std::int32_t, std::int32_t, std::int32_t, bool>;
  // Numbers of like layers by stage, and whether the loss is behind them.
  using Kind = std::pair<std::vector<std::int32_t>, bool>;

  static Size size_of(const Layout& layout);
  SizedLayers made(const Layout& layout);
  void number(SizedLayers& sized);

  const Request& request_;
  std::map<Size, SizedLayers> sizes_;
  std::map<std::pair<Size, std::int32_t>, BalancedStages> balanced_;
  std::vector<memory::LayerMemory> known_;  // Layers with parameters unlike all others'.
  std::int32_t numbers_ = 0;                // Numbers of layers so far.
  std::map<Kind, std::int32_t> kinds_by_parameters_;
  std::map<Kind, std::int32_t> kinds_by_all_;
};

}  // namespace penstock::choose
