#include "penstock/adapt/cost_change.h"

#include <cmath>

#include "penstock/core/check.h"

namespace penstock::adapt {

bool is_change(const Quartiles& before, const Quartiles& now, double share) {
  const bool lie_apart = now.lower > before.upper || now.upper < before.lower;
  return lie_apart && std::abs(now.median - before.median) > share * before.median;
}

CostChange change_between(const WindowCosts& before, const WindowCosts& now, double share) {
  PENSTOCK_CHECK(before.stages.size() == now.stages.size(), now.stages.size(), " stages");
  CostChange change;
  for (std::size_t s = 0; s < now.stages.size(); ++s) {
    const Quartiles was = before.stages[s].total(), is = now.stages[s].total();
    if (is_change(was, is, share)) change.stages.push_back({StageId(s), was.median, is.median});
  }
  const Quartiles was = before.step(), is = now.step();
  if (is_change(was, is, share)) change.step = {was.median, is.median};
  return change;
}

}  // namespace penstock::adapt
