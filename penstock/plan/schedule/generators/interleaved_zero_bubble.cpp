// ZB-H1 over chunks.
// Source: torch's ScheduleInterleavedZeroBubble, which has no paper of its own.
#include "penstock/plan/schedule/generators/split_1f1b.h"
#include "penstock/schedule/generators/objections.h"

namespace penstock::schedule {
namespace {

Schedule make_interleaved_zero_bubble(const Sizes& sizes) {
  const auto forwards = forward_units(sizes);
  const auto backwards = backward_units(sizes);
  const auto ahead = static_cast<std::size_t>((sizes.stages_per_rank - 1) * group_of(sizes));
  return write_rows("interleaved_zero_bubble", sizes, in_a_loop, [&](Row& row) {
    const auto r = static_cast<std::size_t>(row.rank());
    const auto p = static_cast<std::size_t>(sizes.ranks);
    write_split_1f1b(row, forwards, backwards, {.warmup = ahead + p - 1 - r, .delay = r});
  });
}

}  // namespace

Generator interleaved_zero_bubble() {
  return {.position = 70,
          .name = "interleaved_zero_bubble",
          .aliases = {"ScheduleInterleavedZeroBubble", "izb"},
          .summary = "ZB-H1 over several stages per rank",
          .constraints = kEvenGroups,
          .bubble = "(p-1)f/v where p divides m",
          .peak = "min(mv, (v-1)n+p)",
          .stages_per_rank = 2,
          .make = make_interleaved_zero_bubble,
          .objection = object_to_uneven_groups};
}

}  // namespace penstock::schedule
