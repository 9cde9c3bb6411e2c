// Whether a schedule has the actions it should have, each once, each stage on one rank, or, of
// several replicas, each microbatch of a stage.
//
// verify() calls it first, and looks things up in its table.  Knows no order.
#pragma once
#include <optional>
#include <vector>

#include "penstock/plan/verify/diagnostic.h"
#include "penstock/plan/verify/table.h"

namespace penstock::verify {

// The place of a stage's first action; with several replicas, of its first one of each microbatch.
class FirstPlaces {
 public:
  explicit FirstPlaces(const schedule::Schedule& schedule)
      : per_stage_(schedule.replicas == 1 ? 1 : static_cast<std::size_t>(schedule.microbatches)),
        places_(static_cast<std::size_t>(schedule.stages) * per_stage_) {}

  // REQUIRES: a microbatch, where there are several replicas.
  std::optional<Place>& of(StageId stage, OptionalMicrobatch microbatch) {
    return places_[cell(stage, microbatch)];
  }
  const std::optional<Place>& of(StageId stage, OptionalMicrobatch microbatch) const {
    return places_[cell(stage, microbatch)];
  }

 private:
  std::size_t cell(StageId stage, OptionalMicrobatch microbatch) const {
    return per_stage_ == 1 ? stage.index() : stage.index() * per_stage_ + microbatch->index();
  }

  std::size_t per_stage_;
  std::vector<std::optional<Place>> places_;
};

// The ranks that have a copy of each stage, and those that reduce the gradients of all microbatches
// that they have of it.
using RanksOfStages = std::vector<std::vector<Rank>>;

struct Entries {
  explicit Entries(const schedule::Schedule& schedule)
      : table(schedule),
        home(schedule),
        copies(static_cast<std::size_t>(schedule.stages)),
        reducers(copies.size()) {}

  Table table;
  FirstPlaces home;
  RanksOfStages copies;    // Ranks of each stage, rising, at most one per replica.
  RanksOfStages reducers;  // The ones of them, by stage, with a REDUCE_GRAD of all microbatches.
  std::vector<schedule::Action> missing;  // Computations of stages and microbatches that run.

  bool same_rank(StageId a, StageId b, OptionalMicrobatch microbatch) const {
    const auto& home_a = home.of(a, microbatch);
    const auto& home_b = home.of(b, microbatch);
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

// A stage is on the rank that has most of its actions.  An action that stands in the place of the
// only one that is missing is one objection.  Nothing then, and when numbers are out of range, or
// the sizes out of proportion: the places of actions are not known.
std::optional<Entries> enter(const schedule::Schedule& schedule, Objections& objections);

}  // namespace penstock::verify
