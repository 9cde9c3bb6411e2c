// Whether each rank runs its own actions in an order that can be, and every message has two ends.
//
// verify() calls it when it knows where everything stands.  What ranks wait for from each other is
// replay.h's.
#pragma once
#include "penstock/plan/verify/diagnostic.h"
#include "penstock/plan/verify/entries.h"

namespace penstock::verify {

void check_order(const schedule::Schedule& schedule, const Entries& entries,
                 Objections& objections);

}  // namespace penstock::verify
