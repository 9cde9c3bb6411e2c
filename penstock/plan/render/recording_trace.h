// A recording as a trace: for every rank a row of what it computed, and one of its messages and of
// what it waited for.
//
// train/ writes timeline.json with it.  Knows no file format: chrome_trace.h does.
// Units: microseconds since the recording's origin.
#pragma once
#include "penstock/plan/measure/recording.h"
#include "penstock/plan/render/chrome_trace.h"

namespace penstock::render {

// A process per rank; an event's `step` is among its args.
Trace trace_of(const measure::Recording& recording);

}  // namespace penstock::render
