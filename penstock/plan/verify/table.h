// The place of every action of a schedule: the table that verify and lower look things up in.
// Knows no rules.
//
// One number of 32 bits for each op, stage and microbatch, those of a stage and microbatch side by
// side: a program of 50 million actions needs 270 MB.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/verify/diagnostic.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

class Table {
 public:
  // An empty table for the schedule's sizes.
  // REQUIRES: fewer than 2^32 - 1 actions.
  explicit Table(const schedule::Schedule& schedule);

  // REQUIRES: the action has a microbatch where its op always has one, and both numbers are in
  // range; here and below.
  std::optional<Place> at(const schedule::Action& action) const {
    const std::uint32_t position = find(action);
    if (position == kNowhere) return {};
    return place(position);
  }
  bool has(const schedule::Action& action) const { return find(action) != kNowhere; }
  void set(const schedule::Action& action, const Place& place) {
    if (reduces_one(action)) return set_reduction_of_one(action, place);
    positions_[cell(action)] = position(place);
  }

  // Whether `action` is in the program of `place.rank` at `place.step` or behind it.
  bool is_at_or_behind(const schedule::Action& action, const Place& place) const {
    const std::uint32_t at = find(action);
    return at >= position(place) && at < begin_of_rank_[place.rank.index() + 1];
  }

  // The action that makes what `action` makes: the I of a split backward where a B is asked for and
  // only the I is there, else `action`.
  schedule::Action maker_of(const schedule::Action& action) const {
    if (action.op != schedule::Op::Backward || has(action)) return action;
    schedule::Action input = action;
    input.op = schedule::Op::BackwardInput;
    return has(input) ? input : action;
  }

 private:
  static constexpr std::uint32_t kNowhere = static_cast<std::uint32_t>(-1);

  // The ops that always have a microbatch come first in Op; REDUCE_GRAD may have one.
  static constexpr std::size_t kPairOps = static_cast<std::size_t>(schedule::Op::Unshard);
  static constexpr std::size_t kStageOps = schedule::kOps - kPairOps;

  bool reduces_one(const schedule::Action& action) const {
    return action.op == schedule::Op::ReduceGradients && action.microbatch.has_value();
  }
  std::size_t pair(const schedule::Action& action) const {
    return action.stage.index() * microbatches_ + action.microbatch->index();
  }
  std::size_t cell(const schedule::Action& action) const {
    const auto op = static_cast<std::size_t>(action.op);
    return op < kPairOps ? pair(action) * kPairOps + op
                         : pairs_ * kPairOps + action.stage.index() * kStageOps + op - kPairOps;
  }
  std::uint32_t find(const schedule::Action& action) const {
    if (!reduces_one(action)) return positions_[cell(action)];
    return reductions_of_one_.empty() ? kNowhere : reductions_of_one_[pair(action)];
  }

  // Steps of all ranks in one count: those of rank 0, then those of rank 1.
  std::uint32_t position(const Place& place) const {
    return begin_of_rank_[place.rank.index()] + static_cast<std::uint32_t>(place.step);
  }
  Place place(std::uint32_t position) const;
  void set_reduction_of_one(const schedule::Action& action, const Place& place);

  std::size_t microbatches_;
  std::size_t pairs_;  // Pairs of a stage and a microbatch.
  // Begins, and one number more: the count of all ranks.
  std::vector<std::uint32_t> begin_of_rank_;
  std::vector<std::uint32_t> positions_;
  std::vector<std::uint32_t> reductions_of_one_;  // Positions by pair; empty until there is one.
};

// What a compute action waits for: the actions that must be over before it starts, on its own rank
// or on another, given which rank holds which stage.
struct Needs {
  std::optional<schedule::Action> own;      // F of the stage for a B or an I, its I for a W.
  std::optional<schedule::Action> arrival;  // F of the previous stage, or B of the next, where the
                                            // B stands for the I of a split backward, too.
};
// REQUIRES: is_compute(action.op).
inline Needs needs_of(const schedule::Action& action, std::int32_t stages) {
  using schedule::Op;
  const auto of_stage = [&](std::int32_t stage, Op op) {
    return schedule::Action{.stage = StageId(stage), .op = op, .microbatch = action.microbatch};
  };
  const std::int32_t stage = action.stage.value;
  Needs needs;
  if (action.op == Op::Forward) {
    if (stage > 0) needs.arrival = of_stage(stage - 1, Op::Forward);
  } else if (action.op == Op::BackwardWeight) {
    needs.own = of_stage(stage, Op::BackwardInput);
  } else {
    needs.own = of_stage(stage, Op::Forward);
    if (stage + 1 < stages) needs.arrival = of_stage(stage + 1, Op::Backward);
  }
  return needs;
}

}  // namespace penstock::verify
