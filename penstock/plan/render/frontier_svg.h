// Times against memory as an SVG picture: a point for each layout, and those that nothing beats in
// both joined by a line.
//
// `penstock plan` shows it on its page.  Knows no layouts: a point has a label.
#pragma once
#include <span>
#include <string>

namespace penstock::render {

struct FrontierPoint {
  std::string label;
  double milliseconds = 0.0;
  double bytes = 0.0;
  bool is_best = false;  // Nothing is both faster and smaller.
};

// Point i is the circle of the class "candidate" with the id "candidate-" and i + 1.  The same
// bytes on every machine. REQUIRES: there is a point; its numbers are finite and above 0.
std::string frontier_svg(std::span<const FrontierPoint> points);

}  // namespace penstock::render
