// Draws a simulated schedule, as timeline_svg.h does.
//
// `penstock schedule --format svg`, run directories and the documentation use it.
// Knows no measured times.
#pragma once
#include <string>

#include "penstock/simulate/simulate.h"
#include "penstock/verify/verify.h"

namespace penstock::render {

// The picture as the text of one SVG file, the same bytes on every machine.
// REQUIRES: `simulation` is of `schedule`.
std::string schedule_svg(const verify::VerifiedSchedule& schedule,
                         const simulate::Simulation& simulation);

}  // namespace penstock::render
