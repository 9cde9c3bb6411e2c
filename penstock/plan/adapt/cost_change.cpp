#include "penstock/plan/adapt/cost_change.h"

#include <algorithm>
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

CostChange lasting(const CostChange& earlier, CostChange now) {
  const auto same_way = [](const auto& a, const auto& b) {
    return (a.now > a.before) == (b.now > b.before);
  };
  std::erase_if(now.stages, [&](const StageChange& each) {
    return std::ranges::none_of(earlier.stages, [&](const StageChange& was) {
      return was.stage == each.stage && same_way(was, each);
    });
  });
  if (now.step && !(earlier.step && same_way(*earlier.step, *now.step))) now.step.reset();
  return now;
}

}  // namespace penstock::adapt
