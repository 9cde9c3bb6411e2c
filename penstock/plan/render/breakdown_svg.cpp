#include "penstock/plan/render/breakdown_svg.h"

#include <algorithm>
#include <array>

#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/render/palette.h"
#include "penstock/plan/render/svg.h"

namespace penstock::render {
namespace {

constexpr double kWide = 960;
constexpr double kBarsLeft = 120;
constexpr double kBarsRight = kWide - 20;
constexpr double kLegendHeight = 22;  // Height of a line of it.
constexpr double kBarHeight = 20;
constexpr double kBarStep = 28;
constexpr double kSmallText = 12;

constexpr std::array kPartColours = {kBlue, kSkyBlue,   kLightGreen, kGreen,  kVermilion, kShade,
                                     kPink, kLightPink, kOrange,     kYellow, kFadedInk,  kRule};

Colour colour_of_part(std::size_t part) { return kPartColours[part % kPartColours.size()]; }

double size_of(const Breakdown& breakdown) {
  double sum = 0.0;
  for (const auto& [name, size] : breakdown.parts) sum += size;
  return sum;
}

// Draws the parts' names, and returns the height of their lines.
double draw_legend(Svg& svg, const Breakdown& any) {
  double x = kBarsLeft, y = kLegendHeight;
  for (std::size_t i = 0; i < any.parts.size(); ++i) {
    const std::string& name = any.parts[i].first;
    const double width = 18 + text_width(name, kSmallText) + 16;
    if (x + width > kBarsRight) {
      x = kBarsLeft;
      y += kLegendHeight;
    }
    svg.add("rect", {{"x", x},
                     {"y", y - 10},
                     {"width", 12},
                     {"height", 12},
                     {"fill", colour_of_part(i)},
                     {"stroke", kRule}});
    svg.text(x + 18, y, name, {{"font-size", kSmallText}, {"fill", kInk}});
    x += width;
  }
  return y + 10;
}

}  // namespace

std::string breakdown_svg(std::span<const Breakdown> breakdowns, const std::string& title,
                          const std::string& unit, const std::string& prefix) {
  double longest = 0.0;
  for (const Breakdown& each : breakdowns) longest = std::max(longest, size_of(each));
  const double count = static_cast<double>(breakdowns.size());
  Svg svg(kWide, 3 * kLegendHeight + count * kBarStep, title);
  const double top = draw_legend(svg, breakdowns.front());
  for (std::size_t i = 0; i < breakdowns.size(); ++i) {
    const Breakdown& each = breakdowns[i];
    const double y = top + static_cast<double>(i) * kBarStep;
    svg.open("g", {{"class", "breakdown"}, {"id", str(prefix, i + 1)}});
    svg.text(kBarsLeft - 8, y + 14, elided(each.label, kSmallText, kBarsLeft - 16),
             {{"text-anchor", "end"}, {"font-size", kSmallText}, {"fill", kInk}});
    double x = kBarsLeft;
    for (std::size_t part = 0; part < each.parts.size(); ++part) {
      const auto& [name, size] = each.parts[part];
      const double width = size / longest * (kBarsRight - kBarsLeft);
      if (width <= 0.0) continue;
      svg.add("rect",
              {{"x", x},
               {"y", y},
               {"width", width},
               {"height", kBarHeight},
               {"fill", colour_of_part(part)},
               {"stroke", kRule}},
              str(name, ": ", significant(size), " ", unit, ", ", percent(size / size_of(each))));
      x += width;
    }
    svg.close();
  }
  return std::move(svg).finish();
}

}  // namespace penstock::render
