// 1F1B over chunks: a group of microbatches passes all chunks before the next group starts.
// Source: Narayanan et al., Megatron-LM, arXiv 2104.04473; groups as torch's or Megatron-core's.
#include <algorithm>

#include "penstock/plan/schedule/generators/units.h"
#include "penstock/schedule/generators/objections.h"
#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {
namespace {

Schedule make_interleaved_1f1b(const Sizes& sizes) {
  const auto forwards = forward_units(sizes);
  const auto backwards = backward_units(sizes);
  return write_rows("interleaved_1f1b", sizes, in_a_loop, [&](Row& row) {
    const auto from_last_rank = static_cast<std::size_t>(2 * (sizes.ranks - 1 - row.rank()));
    const auto ahead = static_cast<std::size_t>((sizes.stages_per_rank - 1) * group_of(sizes));
    const std::size_t warmup = std::min(forwards.size(), ahead + from_last_rank);
    for (std::size_t k = 0; k < forwards.size() + warmup; ++k) {
      if (k < forwards.size()) row.add(Op::Forward, forwards[k].chunk, forwards[k].microbatch);
      if (k < warmup) continue;
      const Unit& unit = backwards[k - warmup];
      row.add(Op::Backward, unit.chunk, unit.microbatch);
    }
  });
}

}  // namespace

Generator interleaved_1f1b() {
  return {.position = 30,
          .name = "interleaved_1f1b",
          .aliases = {"ScheduleInterleaved1F1B", "interleaved"},
          .summary = "1F1B over several stages per rank, in groups of n microbatches",
          .constraints = kEvenGroups,
          .bubble = "(p-1)(f+b)/v where p divides m",
          .peak = "min(mv, (v-1)n+2(p-1-r)+1)",
          .stages_per_rank = 2,
          .make = make_interleaved_1f1b,
          .objection = object_to_uneven_groups};
}

}  // namespace penstock::schedule
