// A run as the picture of its losses shows it: the curve, and marks of what happened to the run.
//
// run/ and `penstock report` draw the same picture with it.  Knows no pixels and no files.
#pragma once
#include <span>

#include "penstock/plan/measure/metrics_lines.h"
#include "penstock/plan/measure/run_history.h"
#include "penstock/plan/render/loss_svg.h"

namespace penstock::render {

// Adds the losses of these lines to the curve.
void add_losses(LossCurve& curve, std::span<const measure::MetricsLine> lines);

// The end of each part is a break, but that of a run that has finished or still runs.
LossMarks run_marks(const measure::RunHistory& history);

}  // namespace penstock::render
