#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {

Schedule gpipe(const Sizes& sizes) {
  return write_rows("gpipe", sizes, in_a_loop, [&](Row& row) {
    for (const Op op : {Op::Forward, Op::Backward}) {
      for (std::int32_t m = 0; m < sizes.microbatches; ++m) row.add(op, 0, m);
    }
  });
}

}  // namespace penstock::schedule
