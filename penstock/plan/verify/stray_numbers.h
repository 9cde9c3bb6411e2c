// Stages and microbatches that stand alone in a schedule: numbers that were mistyped.
//
// verify() looks for them when a schedule lacks something, because each makes all that is between
// it and the others seem to be missing.  Knows no order.
#pragma once
#include <vector>

#include "penstock/plan/verify/diagnostic.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

// An objection to each action with such a number.  None, unless the schedule without these lacks
// just as many actions.
std::vector<Diagnostic> objections_to_stray_numbers(const schedule::Schedule& schedule);

}  // namespace penstock::verify
