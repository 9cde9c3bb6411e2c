// A program that would be faster than the one that runs, by simulation.
//
// Rank 0 of a run makes it of the measured costs; all ranks verify what it says.  Only the order of
// actions is searched: there is no objection to the change (objection.h).
// Units: milliseconds.
#pragma once
#include <optional>
#include <string>

#include "penstock/plan/adapt/objection.h"
#include "penstock/plan/search/search.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/schedule/schedule.h"
#include "penstock/verify/verify.h"

namespace penstock::adapt {

struct Proposal {
  schedule::Schedule program;  // Has its messages.
  double step_now = 0.0;       // Simulated, of the program that runs.
  double step = 0.0;           // Simulated, of `program`.
  double bound = 0.0;          // What no order can beat.

  double gain() const { return step_now > 0 ? 1.0 - step / step_now : 0.0; }
};

// Why nothing can be proposed for a program; absent: it can.
std::optional<std::string> objection_to_planning(const verify::VerifiedSchedule& program,
                                                 Sums sums);

// The fastest program that is found, which may be the one that runs.
// REQUIRES: no objection_to_planning(); costs that fit.
Proposal propose(const verify::VerifiedSchedule& program, const simulate::Costs& costs,
                 const Terms& terms, const search::Budget& budget);

}  // namespace penstock::adapt
