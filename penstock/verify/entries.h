// Whether a schedule has the actions it should have, each once, each stage on one rank.
//
// verify() calls it first, and looks things up in its table.  Knows no order.
#pragma once
#include <optional>
#include <vector>

#include "penstock/verify/diagnostic.h"
#include "penstock/verify/table.h"

namespace penstock::verify {

struct Entries {
  Table table;
  std::vector<std::optional<Place>> home;  // By stage: where its first action stands.

  bool same_rank(StageId a, StageId b) const {
    const auto& home_a = home[a.index()];
    const auto& home_b = home[b.index()];
    return home_a && home_b && home_a->rank == home_b->rank;
  }
};

// Whether the action's numbers are in the schedule's range, and a microbatch is there where one
// belongs.
inline bool in_range(const schedule::Action& action, const schedule::Schedule& schedule) {
  if (action.stage.value < 0 || action.stage.value >= schedule.stages) return false;
  if (!action.microbatch) return !schedule::has_microbatch(action.op);
  return action.microbatch->value >= 0 && action.microbatch->value < schedule.microbatches &&
         schedule::may_have_microbatch(action.op);
}

// Nothing when numbers are out of range, or the sizes out of proportion: there is no table then.
std::optional<Entries> enter(const schedule::Schedule& schedule, Objections& objections);

}  // namespace penstock::verify
