#include <algorithm>

#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {

Schedule one_f_one_b(const Sizes& sizes) {
  return write_rows("1f1b", sizes, in_a_loop, [&](Row& row) {
    const std::int32_t warmup = std::min(sizes.microbatches, sizes.ranks - row.rank());
    for (std::int32_t m = 0; m < warmup; ++m) row.add(Op::Forward, 0, m);
    for (std::int32_t m = 0; m < sizes.microbatches; ++m) {
      row.add(Op::Backward, 0, m);
      if (warmup + m < sizes.microbatches) row.add(Op::Forward, 0, warmup + m);
    }
  });
}

}  // namespace penstock::schedule
