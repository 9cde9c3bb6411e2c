#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {

Schedule forward_only(const Sizes& sizes) {
  Schedule schedule = write_rows("forward_only", sizes, in_a_loop, [&](Row& row) {
    for (std::int32_t chunk = 0; chunk < sizes.stages_per_rank; ++chunk) {
      for (std::int32_t m = 0; m < sizes.microbatches; ++m) row.add(Op::Forward, chunk, m);
    }
  });
  schedule.purpose = Purpose::Forward;
  return schedule;
}

}  // namespace penstock::schedule
