// Where every action of a schedule stands: the table that verify, simulate and lower look things up
// in.  Knows no rules.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

struct Place {
  Rank rank;
  std::int32_t step = 0;  // Index into the rank's program.
};

// One cell per (op, stage, microbatch); UNSHARD and RESHARD use microbatch 0, and a REDUCE_GRAD of
// all microbatches has a cell of its own.
class Table {
 public:
  Table(std::int32_t stages, std::int32_t microbatches);

  // REQUIRES: the action's stage and microbatch are in range.
  const std::optional<Place>& at(const schedule::Action& action) const;
  void set(const schedule::Action& action, const Place& place);

  // A number for each cell, in [0, cells()).
  std::size_t cell(const schedule::Action& action) const;
  std::size_t cells() const { return places_.size(); }

  // The action that makes what `action` makes: the I of a split backward where a B is asked for and
  // only the I is there, else `action`.
  schedule::Action maker_of(const schedule::Action& action) const;

 private:
  std::int32_t stages_;
  std::int32_t microbatches_;
  std::vector<std::optional<Place>> places_;
};

// What a compute action waits for: the actions that must be over before it starts, on its own rank
// or on another, given which rank holds which stage.
struct Needs {
  std::optional<schedule::Action> own;      // For a B or an I the stage's F, for a W its I.
  std::optional<schedule::Action> arrival;  // F of the previous stage, or B of the next, where the
                                            // B stands for the I of a split backward, too.
};
// REQUIRES: is_compute(action.op).
Needs needs_of(const schedule::Action& action, std::int32_t stages);

// The action that stands for what `action` makes in Needs::arrival: a B for an I, else itself.
schedule::Action value_of(const schedule::Action& action);

}  // namespace penstock::verify
