#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {

Schedule looped_bfs(const Sizes& sizes) {
  return write_rows("looped_bfs", sizes, in_a_loop, [&](Row& row) {
    for (std::int32_t chunk = 0; chunk < sizes.stages_per_rank; ++chunk) {
      for (std::int32_t m = 0; m < sizes.microbatches; ++m) row.add(Op::Forward, chunk, m);
    }
    for (std::int32_t chunk = sizes.stages_per_rank - 1; chunk >= 0; --chunk) {
      for (std::int32_t m = sizes.microbatches - 1; m >= 0; --m) row.add(Op::Backward, chunk, m);
    }
  });
}

}  // namespace penstock::schedule
