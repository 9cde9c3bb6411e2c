// How much the ranks of a data group share, instead of each having all of it.
//
// A configuration says it, partition/ownership.h makes of it who holds what.  Knows no ranks.
#pragma once
#include <cstdint>

namespace penstock::config {

// Each stage shares what the stages before it share.  Source: ZeRO (arXiv 1910.02054), whose
// numbers these are.
enum class ZeroStage : std::uint8_t {
  Off = 0,              // Every rank has everything, and sums of gradients are alike.
  OptimizerStates = 1,  // Each rank updates a shard of the parameters.
  Gradients = 2,        // A rank keeps, of the summed gradients, its shard alone.
  Parameters = 3,       // Shares the parameters, too, except while something uses them.
};

constexpr int number_of(ZeroStage stage) { return static_cast<int>(stage); }

}  // namespace penstock::config
