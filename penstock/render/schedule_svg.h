// Draws a simulated schedule: a row per rank, a box per compute action, idle time hatched.
//
// `penstock schedule --format svg` and the documentation use it.  A box carries its microbatch's
// number; on a rank with several stages, later ones are darker.  A schedule that is too long for
// 4000 pixels is squeezed into them, and loses the numbers.
// Knows no measured times: for those see chrome_trace.h.
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
