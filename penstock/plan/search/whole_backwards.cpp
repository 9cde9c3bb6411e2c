#include "penstock/plan/search/whole_backwards.h"

#include <algorithm>
#include <utility>

#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/search/clock.h"
#include "penstock/simulate/simulate.h"

namespace penstock::search {

double makespan_of(const verify::VerifiedSchedule& schedule, const simulate::Costs& costs) {
  return simulate::simulate(schedule, costs, simulate::Detail::Totals).makespan;
}

verify::VerifiedSchedule with_whole_backwards(verify::VerifiedSchedule split,
                                              const simulate::Costs& costs) {
  double least = makespan_of(split, costs);
  for (std::int32_t s = 0; s < split.schedule().stages; ++s) {
    auto whole = verify::VerifiedSchedule::from(
        schedule::fuse_backwards(split.schedule(), StageId(s)), split.options());
    const double now = makespan_of(whole, costs);
    if (now > least * (1.0 + kRounding)) continue;
    least = std::min(least, now);
    split = std::move(whole);
  }
  return split;
}

}  // namespace penstock::search
