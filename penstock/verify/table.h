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

// One cell per (op, stage, microbatch); REDUCE_GRAD uses microbatch 0.
class Table {
 public:
  Table(std::int32_t stages, std::int32_t microbatches);

  // REQUIRES: the action's stage and microbatch are in range.
  const std::optional<Place>& at(const schedule::Action& action) const;
  void set(const schedule::Action& action, const Place& place);

  // A number for each cell, in [0, cells()).
  std::size_t cell(const schedule::Action& action) const;
  std::size_t cells() const { return places_.size(); }

 private:
  std::int32_t stages_;
  std::int32_t microbatches_;
  std::vector<std::optional<Place>> places_;
};

// What a compute action waits for: the actions that must be over before it starts, on its own rank
// or on another, given which rank holds which stage.
struct Needs {
  std::optional<schedule::Action> own;      // F of the same stage and microbatch, for a B.
  std::optional<schedule::Action> arrival;  // F of the previous stage, or B of the next.
};
// REQUIRES: is_compute(action.op).
Needs needs_of(const schedule::Action& action, std::int32_t stages);

}  // namespace penstock::verify
