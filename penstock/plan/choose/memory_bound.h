// Bounds of a layout's memory from below: what its ranks have of states, and of activations of the
// microbatches that are in flight.
//
// The planner asks it, so that a layout that does not fit costs neither a proof nor a simulation.
// What passes work with, messages and buckets are left out.
// Thread safety: none.  Units: bytes.
#pragma once
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/choose/in_flight.h"
#include "penstock/plan/choose/layout.h"
#include "penstock/plan/choose/sized_layers.h"
#include "penstock/plan/memory/states.h"

namespace penstock::choose {

// How the layout's ranks share parameters.
memory::Sharing sharing_of(const config::Config& config, const Layout& layout);

// Parameters that are whole at one time, at most.
std::int64_t live_page_bytes_max(const config::Config& config);

// A rank's part of the inputs and targets of a step.
std::int64_t batch_bytes(const Request& request, const Layout& layout);

class MemoryBound {
 public:
  // Both outlive this.
  MemoryBound(const Request& request, LayerSizes& sizes);

  // What the fullest rank takes at least, whatever the order.
  // REQUIRES: stage s < pipe is on rank s, as all schedules here have it.
  std::int64_t least_bytes(const Layout& layout);
  // The same of a program.  Law: memory::pipe_memory() never tells less.
  std::int64_t least_bytes(const Layout& layout, const InFlight& in_flight);

 private:
  struct States {
    std::int64_t always = 0;
    std::int64_t pages = 0;  // Parameters that come and go, if all were there at once.
  };
  struct Stage {
    States states;
    std::int64_t kept = 0;  // Activations of one microbatch.
  };

  // Stages by kind.
  std::vector<Stage> stages_of(const Layout& layout, const BalancedStages& stages);
  const States& states_of(const Layout& layout, const BalancedStages& stages,
                          const LikeStages& kind);
  std::int64_t kept(const Layout& layout, const BalancedStages& stages, const LikeStages& kind);
  std::int64_t whole_pages(std::int64_t pages) const;

  const Request& request_;
  LayerSizes& sizes_;
  std::map<std::tuple<std::int32_t, ZeroStage, std::int32_t, std::int32_t, Offload, bool>, States>
      states_;
  std::map<std::pair<std::int32_t, std::int64_t>, std::int64_t> kept_;
};

}  // namespace penstock::choose
