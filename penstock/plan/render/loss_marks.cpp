#include "penstock/plan/render/loss_marks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "penstock/plan/render/number.h"
#include "penstock/plan/render/palette.h"

namespace penstock::render {
namespace {

constexpr double kTick = 8;  // Length of a save's tick.
constexpr double kMarkNumberSize = 11;
constexpr double kPillHeight = 15;
constexpr double kListSize = 13;
constexpr double kLine = 19;
constexpr double kListTop = 6;
constexpr std::size_t kListed = 8;  // Breaks; the others are counted.

std::string path_down(double x, double from, double to) {
  return "M" + rounded(x, 2) + ' ' + rounded(from, 2) + 'V' + rounded(to, 2);
}

// Ticks that would lie on each other are one.
void draw_ticks(Svg& svg, const std::vector<double>& steps, const ChartFrame& frame, Colour colour,
                const std::string& what) {
  double last = -1e9;
  for (const double step : steps) {
    const double x = frame.x(step);
    if (x - last < 1) continue;
    last = x;
    svg.add("path",
            {{"d", path_down(x, frame.bottom, frame.bottom - kTick)},
             {"stroke", colour},
             {"stroke-width", 2.0}},
            what + " after step " + significant(step));
  }
}

std::string number_text(std::size_t first, std::size_t last) {
  const std::string begin = std::to_string(first + 1);
  return first == last ? begin : begin + "\xE2\x80\x93" + std::to_string(last + 1);
}

void draw_number(Svg& svg, const std::string& text, double x, double y) {
  const double width = std::max(kPillHeight, text_width(text, kMarkNumberSize) + 9);
  svg.add("rect", {{"x", x - width / 2},
                   {"y", y - kPillHeight / 2},
                   {"width", width},
                   {"height", kPillHeight},
                   {"rx", kPillHeight / 2},
                   {"fill", kInk}});
  svg.text(x, y + 4, text,
           {{"font-size", kMarkNumberSize},
            {"font-weight", "bold"},
            {"fill", kPaper},
            {"text-anchor", "middle"}});
}

// Numbers that would overlap share a place: "2-4".
void draw_numbers(Svg& svg, std::span<const LossBreak> breaks, const ChartFrame& frame) {
  constexpr double kGap = 24;
  constexpr double kShared = 56;  // Farther apart than these, two places are better.
  const auto x = [&](std::size_t i) { return frame.x(breaks[i].step); };
  for (std::size_t first = 0; first < breaks.size();) {
    std::size_t last = first;
    while (last + 1 < breaks.size() && std::abs(x(last + 1) - x(last)) < kGap &&
           std::abs(x(last + 1) - x(first)) < kShared) {
      ++last;
    }
    draw_number(svg, number_text(first, last), (x(first) + x(last)) / 2,
                frame.top - kPillHeight / 2 - 1);
    first = last + 1;
  }
}

}  // namespace

void draw_steps_again(Svg& svg, const LossMarks& marks, const ChartFrame& frame) {
  for (const LossRange& range : marks.again) {
    const double x = frame.x(range.first);
    svg.add("rect",
            {{"x", x},
             {"y", frame.top},
             {"width", frame.x(range.last) - x},
             {"height", frame.bottom - frame.top},
             {"fill", kOrange},
             {"fill-opacity", 0.22}},
            "steps " + significant(range.first + 1) + " to " + significant(range.last) +
                " were done again");
  }
}

void draw_marks(Svg& svg, const LossMarks& marks, const ChartFrame& frame) {
  draw_ticks(svg, marks.saved, frame, kGreen, "saved");
  draw_ticks(svg, marks.not_saved, frame, kVermilion, "not saved");
  for (const LossBreak& each : marks.breaks) {
    svg.add("path",
            {{"d", path_down(frame.x(each.step), frame.top, frame.bottom)},
             {"stroke", kInk},
             {"stroke-width", 1.0},
             {"stroke-dasharray", each.is_stop ? "1 3" : "5 3"}},
            each.text);
  }
  draw_numbers(svg, marks.breaks, frame);
}

double break_list_height(const LossMarks& marks) {
  if (marks.breaks.empty()) return 0;
  const std::size_t lines = std::min(marks.breaks.size(), kListed + 1);
  return kListTop + kLine * static_cast<double>(lines) + 6;
}

void draw_break_list(Svg& svg, const LossMarks& marks, double x, double y, double width) {
  constexpr double kIndent = 24;
  constexpr double kWider = 1.16;  // A viewer's typeface may be so, and would run over the edge.
  double line = y + kListTop;
  const std::size_t listed = std::min(marks.breaks.size(), kListed);
  for (std::size_t i = 0; i < listed; ++i, line += kLine) {
    draw_number(svg, number_text(i, i), x + 8, line + 6);
    svg.text(x + kIndent, line + 10,
             elided(marks.breaks[i].text, kListSize, (width - kIndent) / kWider),
             {{"font-size", kListSize}});
  }
  if (listed == marks.breaks.size()) return;
  svg.text(x + kIndent, line + 10, std::to_string(marks.breaks.size() - listed) + " more",
           {{"font-size", kListSize}, {"fill", kFadedInk}});
}

}  // namespace penstock::render
