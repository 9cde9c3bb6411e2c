// A timeline as a picture: a row per rank, a box per action, idle time shaded.
//
// Schedules are drawn with it (schedule_svg.h).  A box carries its microbatch's number; on a rank
// with several stages, later ones are darker.  Time that is too long for one line goes on in the
// next, as in a score; with too many lines, the picture shows shares of time over the whole, and
// the beginning and the end in full.  Draws the first lane of each row.  Knows no schedule.
#pragma once
#include <string>

#include "penstock/plan/render/timeline.h"

namespace penstock::render {

// The text of one SVG file, the same bytes on every machine.
// REQUIRES: times are finite.
std::string timeline_svg(const Timeline& timeline);

}  // namespace penstock::render
