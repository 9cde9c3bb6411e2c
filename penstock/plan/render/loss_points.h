// Prepares measured points for drawing: sorts, smooths, thins.
//
// loss_svg.cpp draws what comes out.  Knows no pixels.
#pragma once
#include <cstddef>
#include <vector>

#include "penstock/plan/render/loss_svg.h"

namespace penstock::render {

// The finite points of a size that can be drawn (below 1e100), by rising step; equal steps keep
// their order.
std::vector<LossPoint> drawable(const std::vector<LossPoint>& points);

// Replaces each point's loss by the mean of the point and the `reach` points on either side, or as
// many of these as there are.
std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points, std::size_t reach);

// At most `count_max` of the points: the first, the last, and of even runs of the others the
// smallest and the largest loss, so that every peak stays.
// REQUIRES: count_max >= 4.
std::vector<LossPoint> thinned(const std::vector<LossPoint>& points, std::size_t count_max);

}  // namespace penstock::render
