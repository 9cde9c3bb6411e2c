// Whether any order is through at a given time: a search that misses none.
//
// Windows are narrowed first (windows.h).  Where they leave a choice, the earliest one that a rank
// has is made: one way to go on is tried, and what it says of the windows; where there is no order
// behind it, that way is struck out.  If nothing is left, there is no order in time, and that is
// proven; if no choice is left, what remains is an order.
// Source: branch and bound for job shops, with the active schedules of Giffler and Thompson (1960)
// as the first ones tried; that it begins again with other dice and a larger budget: Gomes, Selman
// and Kautz, 1998.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "penstock/plan/search/problem.h"
#include "penstock/plan/search/windows.h"

namespace penstock::search {

enum class Answer : std::uint8_t {
  No,    // No order is in time.
  Yes,   // Some order is in time.
  Open,  // It was too much work to find out.
};

struct Attempt {
  Answer answer = Answer::Open;
  bool has_branched = false;        // False: windows alone gave the answer.
  std::optional<Order> order = {};  // The order of a Yes.
  std::int64_t steps = 0;           // Looked at.
};

struct Patience {
  std::uint64_t seed = 1;
  std::int64_t steps = 0;  // Limit on those looked at; windows are narrowed once in any case.
  std::function<bool()> stop = [] { return false; };
};

// REQUIRES: all microbatches cost the same.
Attempt attempt(const Ways& ways, double end, const Patience& patience);

// Whether each stage's microbatches take the same times and sizes.
bool has_equal_microbatches(const Problem& problem);

}  // namespace penstock::search
