// 1F1B with the backward split: rank r runs a W once r more Is are done.  Memory as 1F1B.
// Source: Qi et al., Zero bubble pipeline parallelism, arXiv 2401.10241, section 2.
#include "penstock/plan/schedule/generators/split_1f1b.h"
#include "penstock/schedule/generators/objections.h"

namespace penstock::schedule {
namespace {

Schedule make_zb_h1(const Sizes& sizes) {
  const auto units = forward_units(sizes);
  return write_rows("zb_h1", sizes, in_a_loop, [&](Row& row) {
    const auto r = static_cast<std::size_t>(row.rank());
    const auto p = static_cast<std::size_t>(sizes.ranks);
    write_split_1f1b(row, units, units, {.warmup = p - 1 - r, .delay = r});
  });
}

}  // namespace

Generator zb_h1() {
  return {.position = 50,
          .name = "zb_h1",
          .aliases = {"zb1p"},
          .summary = "1F1B with split backwards that fill the end",
          .constraints = "v = 1",
          .bubble = "max(p-1, 2p-1-m)f",
          .peak = "min(m, p)",
          .make = make_zb_h1,
          .objection = object_to_many_stages};
}

}  // namespace penstock::schedule
