// What a schedule from outside goes through, whatever it is: verify, and if it verifies, all the
// rest of planning.
//
// The fuzz targets of the dialects end with it.  Knows no dialect.
#pragma once
#include "penstock/schedule/schedule.h"

namespace penstock::fuzz {

// Laws: verify() returns; a schedule without objections simulates, lowers or is refused by name,
// and a compute order without objections has none with our messages either.
void plan_it(const schedule::Schedule& schedule);

}  // namespace penstock::fuzz
