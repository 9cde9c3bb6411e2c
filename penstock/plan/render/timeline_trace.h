// A timeline as a trace: its bars as events, its memory as counters.
//
// `penstock schedule --format trace` writes it.  Knows no file format: chrome_trace.h does.
#pragma once
#include "penstock/plan/render/chrome_trace.h"
#include "penstock/plan/render/timeline.h"

namespace penstock::render {

// A process per row, a thread per lane.  A unit of the timeline is shown as a millisecond.
Trace trace_of(const Timeline& timeline);

}  // namespace penstock::render
