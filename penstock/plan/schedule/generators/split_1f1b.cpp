#include "penstock/plan/schedule/generators/split_1f1b.h"

#include <algorithm>

namespace penstock::schedule {

void write_split_1f1b(Row& row, const std::vector<Unit>& forwards,
                      const std::vector<Unit>& backwards, const Depth& depth) {
  const auto add = [&](Op op, const Unit& unit) { row.add(op, unit.chunk, unit.microbatch); };
  const std::size_t units = forwards.size();
  const std::size_t warmup = std::min(units, depth.warmup);
  for (std::size_t k = 0; k < warmup; ++k) add(Op::Forward, forwards[k]);
  for (std::size_t k = 0; k < units; ++k) {
    if (warmup + k < units) add(Op::Forward, forwards[warmup + k]);
    add(Op::BackwardInput, backwards[k]);
    if (k >= depth.delay) add(Op::BackwardWeight, backwards[k - depth.delay]);
  }
  for (std::size_t k = units - std::min(units, depth.delay); k < units; ++k) {
    add(Op::BackwardWeight, backwards[k]);
  }
}

}  // namespace penstock::schedule
