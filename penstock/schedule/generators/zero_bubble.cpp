// ZB-H1, ZB-H2 and the interleaved zero bubble: one rule, three depths.
#include <algorithm>

#include "penstock/schedule/generators/rows.h"
#include "penstock/schedule/generators/units.h"

namespace penstock::schedule {
namespace {

struct Depth {
  std::size_t warmup = 0;  // Forwards before the first F, I pair.
  std::size_t delay = 0;   // Ws that are behind the Is.
};

// `warmup` forwards, then F and I in turn, then the rest of the Is.  The W of a unit comes right
// after the I that is `delay` units later; what is left drains at the end.
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

}  // namespace

Schedule zb_h1(const Sizes& sizes) {
  const auto units = forward_units(sizes);
  return write_rows("zb_h1", sizes, in_a_loop, [&](Row& row) {
    const auto r = static_cast<std::size_t>(row.rank());
    const auto p = static_cast<std::size_t>(sizes.ranks);
    write_split_1f1b(row, units, units, {.warmup = p - 1 - r, .delay = r});
  });
}

Schedule zb_h2(const Sizes& sizes) {
  const auto units = forward_units(sizes);
  return write_rows("zb_h2", sizes, in_a_loop, [&](Row& row) {
    const auto r = static_cast<std::size_t>(row.rank());
    const auto p = static_cast<std::size_t>(sizes.ranks);
    write_split_1f1b(row, units, units, {.warmup = 2 * (p - 1 - r), .delay = 2 * r});
  });
}

Schedule interleaved_zero_bubble(const Sizes& sizes) {
  const auto forwards = forward_units(sizes);
  const auto backwards = backward_units(sizes);
  const auto ahead = static_cast<std::size_t>((sizes.stages_per_rank - 1) * group_of(sizes));
  return write_rows("interleaved_zero_bubble", sizes, in_a_loop, [&](Row& row) {
    const auto r = static_cast<std::size_t>(row.rank());
    const auto p = static_cast<std::size_t>(sizes.ranks);
    write_split_1f1b(row, forwards, backwards, {.warmup = ahead + p - 1 - r, .delay = r});
  });
}

}  // namespace penstock::schedule
