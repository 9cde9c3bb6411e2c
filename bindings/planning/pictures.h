// How notebooks see a schedule.
//
// init_schedule() binds it; simulate.cpp draws.  Knows no costs but those of one unit each.
#pragma once
#include <optional>
#include <string>

#include "penstock/schedule/schedule.h"

namespace penstock::bindings {

// The schedule's picture as SVG; absent for one that does not verify, of which there is none.
std::optional<std::string> picture_of(const schedule::Schedule& schedule);

}  // namespace penstock::bindings
