#include "penstock/plan/schedule/generators/units.h"

#include <algorithm>

#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

std::int32_t rounds_of(const Sizes& sizes) { return std::max(1, sizes.microbatches / sizes.ranks); }

}  // namespace

std::int32_t group_of(const Sizes& sizes) {
  return sizes.microbatch_group.value_or(sizes.microbatches / rounds_of(sizes));
}

std::vector<Unit> forward_units(const Sizes& sizes) {
  std::vector<Unit> units;
  const std::int32_t group = group_of(sizes);
  for (std::int32_t first = 0; first < sizes.microbatches; first += group) {
    const std::int32_t end = std::min(first + group, sizes.microbatches);
    for (std::int32_t chunk = 0; chunk < sizes.stages_per_rank; ++chunk) {
      for (std::int32_t m = first; m < end; ++m) units.push_back({chunk, m});
    }
  }
  return units;
}

std::vector<Unit> backward_units(const Sizes& sizes) {
  std::vector<Unit> units = forward_units(sizes);
  for (Unit& unit : units) unit.chunk = sizes.stages_per_rank - 1 - unit.chunk;
  return units;
}

std::string objection_to_groups(const Sizes& sizes) {
  const std::int32_t m = sizes.microbatches;
  if (sizes.microbatch_group) {
    const std::int32_t group = *sizes.microbatch_group;
    if (group < sizes.ranks || group > m) {
      return str("microbatch_group is ", group, ", must be from ranks (", sizes.ranks,
                 ") to microbatches (", m, ")");
    }
    if (m % group != 0 && m % group < sizes.ranks) {
      return str("microbatches is ", m, ", which leaves a last group of ", m % group,
                 " after groups of ", group, "; it must be empty or at least ranks (", sizes.ranks,
                 ")");
    }
    return {};
  }
  if (m % rounds_of(sizes) == 0) return {};
  return str("microbatches is ", m, ", must be a multiple of its ", rounds_of(sizes),
             " rounds (microbatches / ranks, rounded down)");
}

}  // namespace penstock::schedule
