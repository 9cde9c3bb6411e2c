// Warm-up of ranks - r forwards on rank r, then one backward, one forward in turn, then the rest of
// the backwards.
// Source: Narayanan et al., PipeDream-flush, arXiv 2006.09503.
#include <algorithm>

#include "penstock/schedule/generators/objections.h"
#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {
namespace {

Schedule make_one_f_one_b(const Sizes& sizes) {
  return write_rows("1f1b", sizes, in_a_loop, [&](Row& row) {
    const std::int32_t warmup = std::min(sizes.microbatches, sizes.ranks - row.rank());
    for (std::int32_t m = 0; m < warmup; ++m) row.add(Op::Forward, 0, m);
    for (std::int32_t m = 0; m < sizes.microbatches; ++m) {
      row.add(Op::Backward, 0, m);
      if (warmup + m < sizes.microbatches) row.add(Op::Forward, 0, warmup + m);
    }
  });
}

}  // namespace

Generator one_f_one_b() {
  return {.position = 20,
          .name = "1f1b",
          .aliases = {"Schedule1F1B", "one_f_one_b", "TrainSchedule"},
          .summary = "one forward, one backward in turn",
          .constraints = "v = 1",
          .bubble = "(p-1)(f+b)",
          .peak = "min(m, p-r)",
          .make = make_one_f_one_b,
          .objection = object_to_many_stages};
}

}  // namespace penstock::schedule
