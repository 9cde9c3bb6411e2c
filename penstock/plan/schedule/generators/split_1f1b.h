// One forward, one backward in turn, with split backwards: ZB-H1, ZB-H2 and the interleaved zero
// bubble are this, at three depths.
//
// Source: Qi et al., Zero bubble pipeline parallelism, arXiv 2401.10241, section 2.
#pragma once
#include <cstddef>
#include <vector>

#include "penstock/plan/schedule/generators/units.h"
#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {

struct Depth {
  std::size_t warmup = 0;  // Forwards before the first F, I pair.
  std::size_t delay = 0;   // Ws that are behind the Is.
};

// `warmup` forwards, then F and I in turn, then the rest of the Is.  The W of a unit comes right
// after the I that is `delay` units later; what is left drains at the end.
void write_split_1f1b(Row& row, const std::vector<Unit>& forwards,
                      const std::vector<Unit>& backwards, const Depth& depth);

}  // namespace penstock::schedule
