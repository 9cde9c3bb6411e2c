// The ranks that have the same parameters, and how long they sum and gather them.
//
// Step times are made of it.  Without experts and copies these are the ranks of one group, and a
// sum is a reduce-scatter among them.  Where ZeRO cuts within groups of them, sums of what each
// rank has are summed once more, over the groups (hybrid sharding: Zhao et al., PyTorch FSDP,
// 2023). Other ranks have the same experts: those of a stage, in their order, share them in groups,
// and ranks of equal places have the same (folding: Liu et al., MoE Parallel Folding, 2025). Knows
// no parameters.  Units: seconds, bytes.
#pragma once
#include <cstdint>

#include "penstock/plan/choose/layout.h"
#include "penstock/plan/choose/network.h"

namespace penstock::choose {

struct Sharers {
  std::int32_t ranks = 1;  // Ranks among which pieces are cut.
  LinkSpeed link;
  std::int32_t copies = 1;  // Groups of them.
  LinkSpeed copies_link;

  // The gather of so many bytes: each rank's piece to all ranks of its group.
  double gathered(double bytes) const { return collective_time(link, ranks, bytes); }
  // The sum of so many bytes, of which each rank of a group gets its piece.
  double summed(double bytes) const;
};

// The ranks that have the same stage as `rank`, the first of which it is.
Sharers sharers_of(const Layout& layout, const Network& network, Rank rank);
// The same of experts.
Sharers expert_sharers_of(const Layout& layout, const Network& network, Rank rank);

}  // namespace penstock::choose
