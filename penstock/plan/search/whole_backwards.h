// Makes backwards whole again, where a search split all of them.
//
// Who has found an order calls it before the order is handed on.  Knows no problem.
#pragma once
#include "penstock/plan/simulate/costs.h"
#include "penstock/verify/verify.h"

namespace penstock::search {

double makespan_of(const verify::VerifiedSchedule& schedule, const simulate::Costs& costs);

// Backwards in one piece, where nobody waits longer for it: there are fewer actions then, and a
// whole backward may cost less than its halves.
verify::VerifiedSchedule with_whole_backwards(verify::VerifiedSchedule split,
                                              const simulate::Costs& costs);

}  // namespace penstock::search
