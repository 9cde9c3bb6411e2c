// Random orders that DeepSpeed's form can say: stage s on rank s, each F in the order of
// microbatches.
//
// Verify clean by construction; B come in any order.  Knows nothing of steps and buffers.
#pragma once
#include <vector>

#include "penstock/schedule/schedule.h"
#include "tests/support/random.h"

namespace penstock::testing_support {

// At most 4 stages and 6 microbatches.
inline schedule::Schedule random_order_in_steps(Random& random) {
  const std::int32_t stages = random.between(1, 4);
  const std::int32_t microbatches = random.between(1, 6);
  schedule::Schedule order{
      .name = "random",
      .stages = stages,
      .microbatches = microbatches,
      .programs = std::vector<schedule::Program>(static_cast<std::size_t>(stages))};
  std::vector<std::int32_t> hop(static_cast<std::size_t>(microbatches), 0);
  for (;;) {
    std::vector<std::size_t> movable;
    for (std::size_t m = 0; m < hop.size(); ++m) {
      const bool over = hop[m] == 2 * stages;
      const bool behind = m > 0 && hop[m] < stages && hop[m - 1] <= hop[m];
      if (!over && !behind) movable.push_back(m);
    }
    if (movable.empty()) return order;
    const std::size_t m = movable[random.index_of(movable.size())];
    const std::int32_t at = hop[m]++;
    const StageId stage(at < stages ? at : 2 * stages - 1 - at);
    order.programs[stage.index()].push_back(
        {.stage = stage,
         .op = at < stages ? schedule::Op::Forward : schedule::Op::Backward,
         .microbatch = Microbatch(m)});
  }
}

}  // namespace penstock::testing_support
