// A layout that a user writes down: "pipe=8,tensor=4,data=2,zero=1,microbatch=1,recompute=full".
//
// `penstock plan --only` prices it.  Knows no times and no memory.
#pragma once
#include <cstdint>
#include <string>

#include "penstock/plan/choose/layout.h"

namespace penstock::choose {

// How a priced layout's layers are cut into stages.
enum class Stages : std::uint8_t {
  Best,  // Cut for the shortest step, like those of a candidate.
  // Equal numbers of blocks, with what is before them in the first, and behind them in the last; or
  // one block fewer in these two.
  Even,
};

struct AskedLayout {
  Layout layout;
  Stages stages = Stages::Best;
};

// What it has to fit.
struct Frame {
  std::int64_t world = 0;    // Ranks of all axes; 0: as many as the axes have.
  std::int64_t samples = 1;  // Samples of a step, on all replicas.
  std::int64_t layers = 1;
  std::int64_t tokens = 0;          // Tokens of a sample, which ranks may share; 0: they may not.
  std::int64_t experts = 0;         // Experts of a layer, which ranks may share.
  std::int32_t ranks_per_node = 0;  // Same as Choices::ranks_per_node.
  std::int64_t full_interval = 1;   // Layers that are computed again together.
  bool is_selective_when_full = false;  // Whether these are selective.
};

// Keys, each at most once: pipe, tensor (1), context (1), data (what the world leaves), expert (1),
// zero (0), shard (ranks among which ZeRO cuts, or "node"; all), schedule
// (1f1b), stages_per_rank (as the schedule likes it), microbatch (1), recompute (none, selective,
// full), offload (none, states, parameters), stages (best, even).
// Throws: ConfigError for an unknown key or value (the nearest), for one that is given twice, and
// for axes, microbatches, stages or nodes that do not go together (what would).
AskedLayout asked_layout(const std::string& text, const Frame& frame);

}  // namespace penstock::choose
