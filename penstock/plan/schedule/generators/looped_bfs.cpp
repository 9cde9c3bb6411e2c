// All microbatches on the first chunk, then on the next; backward in the exact reverse.  A stage's
// weights are needed in one stretch per pass.
// Source: Lamy-Poirier, Breadth-first pipeline parallelism, arXiv 2211.05953; as torch's.
#include "penstock/schedule/generators/objections.h"
#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {
namespace {

Schedule make_looped_bfs(const Sizes& sizes) {
  return write_rows("looped_bfs", sizes, in_a_loop, [&](Row& row) {
    for (std::int32_t chunk = 0; chunk < sizes.stages_per_rank; ++chunk) {
      for (std::int32_t m = 0; m < sizes.microbatches; ++m) row.add(Op::Forward, chunk, m);
    }
    for (std::int32_t chunk = sizes.stages_per_rank - 1; chunk >= 0; --chunk) {
      for (std::int32_t m = sizes.microbatches - 1; m >= 0; --m) row.add(Op::Backward, chunk, m);
    }
  });
}

}  // namespace

Generator looped_bfs() {
  return {.position = 40,
          .name = "looped_bfs",
          .aliases = {"ScheduleLoopedBFS"},
          .summary = "stage after stage, all microbatches on each, and back",
          .constraints = "any",
          .bubble = "(p-1)(f+b)/v where m >= p",
          .peak = "mv",
          .stages_per_rank = 2,
          .backwards = BackwardOrder::Other,
          .make = make_looped_bfs,
          .objection = object_to_none};
}

}  // namespace penstock::schedule
