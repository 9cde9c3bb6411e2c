#include "penstock/plan/measure/drift.h"

#include <cmath>
#include <map>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/plan/measure/fit.h"

namespace penstock::measure {

std::vector<Drift> drifts(const MeasuredStep& measured, const simulate::Simulation& simulated) {
  std::vector<Drift> result;
  result.reserve(simulated.events.size());
  std::vector<std::size_t> next(measured.computations.size(), 0);
  for (const simulate::Event& event : simulated.events) {
    const Computation& computation =
        measured.computations[event.rank.index()][next[event.rank.index()]++];
    PENSTOCK_CHECK(computation.action.op == event.action.op &&
                       computation.action.microbatch == event.action.microbatch,
                   computation.action, " measured, ", event.action, " simulated");
    result.push_back({.rank = event.rank,
                      .action = event.action,
                      .start = computation.start - event.start,
                      .duration = computation.hold - (event.end - event.start)});
  }
  return result;
}

std::vector<OpDrift> by_op(const std::vector<Drift>& drifts) {
  std::map<std::pair<StageId, schedule::Op>, std::vector<const Drift*>> groups;
  for (const Drift& drift : drifts) groups[{drift.action.stage, drift.action.op}].push_back(&drift);
  std::vector<OpDrift> result;
  for (const auto& [key, group] : groups) {
    OpDrift of{.stage = key.first,
               .op = key.second,
               .start_first = group.front()->start,
               .start_last = group.back()->start};
    std::vector<double> durations;
    for (const Drift* drift : group) {
      durations.push_back(drift->duration);
      if (std::abs(drift->duration) > std::abs(of.duration_largest)) {
        of.duration_largest = drift->duration;
      }
    }
    of.duration_median = quartiles(std::move(durations)).median;
    result.push_back(of);
  }
  return result;
}

}  // namespace penstock::measure
