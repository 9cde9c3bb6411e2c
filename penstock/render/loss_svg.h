// Draws how the loss fell: a line for training and its moving average, points for validation.
//
// The trainer writes it next to its log at the end of a run; the documentation shows it.  Knows no
// log format: the caller brings the points.
// Units: steps and losses as the caller counts them.
#pragma once
#include <string>
#include <vector>

namespace penstock::render {

struct LossPoint {
  double step = 0;
  double loss = 0;
  friend bool operator==(const LossPoint&, const LossPoint&) = default;
};

struct LossCurve {
  std::vector<LossPoint> train;
  std::vector<LossPoint> validation;
  std::string title;
};

// The picture as the text of one SVG file, the same bytes on every machine.  Points that are not
// finite are left out; so many that a picture cannot show them are thinned, but no peak is lost.
std::string loss_svg(const LossCurve& curve);

}  // namespace penstock::render
