// The parts of the time, or the memory, of layouts as an SVG picture: a bar for each.
//
// `penstock plan` shows it on its page.  Knows no layouts and no units: all are told.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::render {

struct Breakdown {
  std::string label;  // Text beside the bar.
  // A part's name and size; all breakdowns of a picture have the same names in the same order.
  std::vector<std::pair<std::string, double>> parts;
};

// Bars are to one scale.  Bar i is the group "class=breakdown" with the id `prefix` and i + 1.
// The same bytes on every machine.
// REQUIRES: there is a breakdown, with a part above 0; sizes are finite and not below 0.
std::string breakdown_svg(std::span<const Breakdown> breakdowns, const std::string& title,
                          const std::string& unit, const std::string& prefix);

}  // namespace penstock::render
