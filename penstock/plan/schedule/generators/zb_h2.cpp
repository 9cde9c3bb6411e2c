// ZB-H1 with twice the warm-up and the delay: no bubble between first and last action of a rank
// when F, I and W cost the same.
// Source: Qi et al., Zero bubble pipeline parallelism, arXiv 2401.10241, section 2.
#include "penstock/plan/schedule/generators/split_1f1b.h"
#include "penstock/schedule/generators/objections.h"

namespace penstock::schedule {
namespace {

Schedule make_zb_h2(const Sizes& sizes) {
  const auto units = forward_units(sizes);
  return write_rows("zb_h2", sizes, in_a_loop, [&](Row& row) {
    const auto r = static_cast<std::size_t>(row.rank());
    const auto p = static_cast<std::size_t>(sizes.ranks);
    write_split_1f1b(row, units, units, {.warmup = 2 * (p - 1 - r), .delay = 2 * r});
  });
}

}  // namespace

Generator zb_h2() {
  return {.position = 60,
          .name = "zb_h2",
          .aliases = {"zb2p"},
          .summary = "ZB-H1 with twice the depth: no bubble inside a rank",
          .constraints = "v = 1",
          .bubble = "(p-1)f where m >= 2p-1",
          .peak = "min(m, 2p-1)",
          .make = make_zb_h2,
          .objection = object_to_many_stages};
}

}  // namespace penstock::schedule
