// How much of each short stretch of time a lane spends on each op: what is left to draw when its
// bars are narrower than the eye.
//
// timeline_svg.cpp draws it; the page does the same in the browser.  Knows no pixels.
#pragma once
#include <array>
#include <vector>

#include "penstock/plan/render/timeline.h"

namespace penstock::render {

// Shares in [0, 1], by op; what is missing is idle.
using OpShares = std::array<double, schedule::kOps>;

// Shares in `count` equal stretches of [0, end].
// REQUIRES: count >= 1; end > 0; no bar ends behind `end`.
std::vector<OpShares> shares_of(const std::vector<Bar>& bars, double end, std::size_t count);

}  // namespace penstock::render
