#include "penstock/plan/render/frontier_svg.h"

#include <algorithm>
#include <vector>

#include "penstock/core/byte_size.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/render/palette.h"
#include "penstock/plan/render/svg.h"
#include "penstock/plan/render/ticks.h"

namespace penstock::render {
namespace {

constexpr double kWidth = 960;
constexpr double kHeight = 400;
constexpr double kLeft = 80;  // Edges of the frame, as the next ones.
constexpr double kRight = kWidth - 40;
constexpr double kTop = 24;
constexpr double kBottom = kHeight - 64;
constexpr double kTextSize = 12;
constexpr int kTicksMax = 8;
constexpr double kMebibyte = 1 << 20;

struct Axis {
  double low = 0.0;
  double high = 1.0;
  double begin = 0.0;  // Pixels, as the next.
  double end = 0.0;

  double place(double value) const { return begin + (value - low) / (high - low) * (end - begin); }
};

// Makes an axis with a little room on both sides.
Axis axis_of(std::vector<double> values, double begin, double end) {
  const auto [low, high] = std::ranges::minmax(values);
  constexpr double kRoom = 0.08;
  const double room = high > low ? kRoom * (high - low) : kRoom * high;
  return {.low = low - room, .high = high + room, .begin = begin, .end = end};
}

void draw_axes(Svg& svg, const Axis& x, const Axis& y) {
  const Ticks across = ticks({.low = x.low, .high = x.high, .count_max = kTicksMax});
  for (const double value : across.values) {
    svg.add("line", {{"x1", x.place(value)},
                     {"x2", x.place(value)},
                     {"y1", kTop},
                     {"y2", kBottom},
                     {"stroke", kFaintRule}});
    svg.text(x.place(value), kBottom + 18, tick_label(value, across.step),
             {{"text-anchor", "middle"}, {"font-size", kTextSize}, {"fill", kFadedInk}});
  }
  const Ticks up = ticks({.low = y.low, .high = y.high, .count_max = kTicksMax});
  for (const double value : up.values) {
    svg.add("line", {{"x1", kLeft},
                     {"x2", kRight},
                     {"y1", y.place(value)},
                     {"y2", y.place(value)},
                     {"stroke", kFaintRule}});
    svg.text(kLeft - 8, y.place(value) + 4, tick_label(value, up.step),
             {{"text-anchor", "end"}, {"font-size", kTextSize}, {"fill", kFadedInk}});
  }
  svg.text((kLeft + kRight) / 2, kHeight - 20, "peak memory of the fullest rank, MiB",
           {{"text-anchor", "middle"}, {"font-size", kTextSize}, {"fill", kInk}});
  svg.text(kLeft, kTop - 8, "step, ms", {{"font-size", kTextSize}, {"fill", kInk}});
}

}  // namespace

std::string frontier_svg(std::span<const FrontierPoint> points) {
  std::vector<double> memory, times;
  for (const FrontierPoint& point : points) {
    memory.push_back(point.bytes / kMebibyte);
    times.push_back(point.milliseconds);
  }
  const Axis x = axis_of(memory, kLeft, kRight);
  const Axis y = axis_of(times, kBottom, kTop);
  Svg svg(kWidth, kHeight, "Step times of layouts against their peak memory");
  draw_axes(svg, x, y);
  std::vector<std::size_t> best;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].is_best) best.push_back(i);
  }
  std::ranges::sort(best, {}, [&](std::size_t i) { return memory[i]; });
  std::string line;
  for (const std::size_t i : best) {
    line += (line.empty() ? "" : " ") + rounded(x.place(memory[i]), 1) + ',' +
            rounded(y.place(times[i]), 1);
  }
  svg.add("polyline", {{"points", line}, {"fill", "none"}, {"stroke", kBlue}});
  for (std::size_t i = 0; i < points.size(); ++i) {
    const FrontierPoint& point = points[i];
    svg.add("circle",
            {{"cx", x.place(memory[i])},
             {"cy", y.place(times[i])},
             {"r", 5},
             {"class", "candidate"},
             {"id", str("candidate-", i + 1)},
             {"stroke", kBlue},
             {"fill", point.is_best ? kBlue : kPaper}},
            point.label + ", " + significant(point.milliseconds) + " ms, " +
                mebibytes(static_cast<std::uint64_t>(point.bytes)));
  }
  return std::move(svg).finish();
}

}  // namespace penstock::render
