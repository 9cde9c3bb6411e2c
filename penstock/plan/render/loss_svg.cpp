#include "penstock/plan/render/loss_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "penstock/plan/render/loss_marks.h"
#include "penstock/plan/render/loss_points.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/render/palette.h"
#include "penstock/plan/render/svg.h"
#include "penstock/plan/render/ticks.h"

namespace penstock::render {
namespace {

constexpr double kPlotWidth = 960;
constexpr double kPlotHeight = 448;
constexpr double kMargin = 24;
constexpr double kPlotLeft = 80;  // Edges of the frame, as the next ones.
constexpr double kPlotRight = kPlotWidth - 148;
constexpr double kPlotTop = 92;
constexpr double kPlotBottom = kPlotHeight - 58;

constexpr double kTitleSize = 18;
constexpr double kPlotTextSize = 13;
constexpr double kSmallSize = 11;
constexpr double kLabelDistance = 17;  // Least distance of two last values.

constexpr std::size_t kPointsMax = 2000;      // Drawn, in all lines together.
constexpr std::size_t kMarkersMax = 60;       // More validation points than these: only a line.
constexpr std::size_t kSmoothedFrom = 40;     // Fewer training points: no moving average.
constexpr std::size_t kPointsPerWindow = 40;  // Windows of the moving average, roughly.
constexpr std::size_t kReachMax = 250;

struct Span {
  double low = 0;
  double high = 1;
  double size() const { return high - low; }
};

struct Chart {
  std::vector<LossPoint> train;
  std::vector<LossPoint> mean;  // Empty when there are few points.
  std::size_t mean_count = 0;   // Points in a mean.
  std::vector<LossPoint> validation;
  std::vector<LossSeries> others;
  std::optional<LossPoint> best;
  Span steps;
  Span losses;

  bool is_empty() const { return train.empty() && validation.empty(); }
  double x(const LossPoint& point) const {
    return kPlotLeft + (point.step - steps.low) / steps.size() * (kPlotRight - kPlotLeft);
  }
  double y(const LossPoint& point) const {
    return kPlotBottom - (point.loss - losses.low) / losses.size() * (kPlotBottom - kPlotTop);
  }
  ChartFrame frame() const {
    return {kPlotLeft, kPlotRight, kPlotTop, kPlotBottom, steps.low, steps.high};
  }
};

// The span from the smallest to the largest value, widened where that is nothing.
template <class Value>
Span span_of(const Chart& chart, Value value) {
  std::optional<Span> span;
  std::vector<const std::vector<LossPoint>*> all = {&chart.train, &chart.validation};
  for (const LossSeries& each : chart.others) all.push_back(&each.points);
  for (const auto* points : all) {
    for (const LossPoint& point : *points) {
      if (!span) span = Span{value(point), value(point)};
      span = Span{std::min(span->low, value(point)), std::max(span->high, value(point))};
    }
  }
  if (!span) return {};
  const double nothing = 1e-9 * std::max({1e-3, std::abs(span->low), std::abs(span->high)});
  if (span->size() > nothing) return *span;
  const double more = std::max(1.0, std::abs(span->low) * 0.1);
  return {span->low >= 0 ? std::max(0.0, span->low - more) : span->low - more, span->high + more};
}

// Some air above and below, but none below zero for values that are not.
Span with_air(const Span& span) {
  const double air = 0.06 * span.size();
  const double low = span.low - air;
  return {span.low >= 0 ? std::max(0.0, low) : low, span.high + air};
}

// What was trained and lost may be behind the last point that there is.
Span with_marks(Span steps, const LossMarks& marks) {
  for (const auto* all : {&marks.saved, &marks.not_saved}) {
    for (const double step : *all) {
      steps = {std::min(steps.low, step), std::max(steps.high, step)};
    }
  }
  for (const LossBreak& each : marks.breaks) {
    steps = {std::min(steps.low, each.step), std::max(steps.high, each.step)};
  }
  for (const LossRange& each : marks.again) {
    steps = {std::min(steps.low, each.first), std::max(steps.high, each.last)};
  }
  return steps;
}

Chart chart_of(const LossCurve& curve) {
  Chart chart;
  const std::vector<LossPoint> train = drawable(curve.train);
  if (train.size() >= kSmoothedFrom) {
    const std::size_t reach = std::min(train.size() / kPointsPerWindow / 2 + 1, kReachMax);
    chart.mean = thinned(smoothed(train, reach), kPointsMax / 4);
    chart.mean_count = 2 * reach + 1;
  }
  chart.train = thinned(train, kPointsMax / 2);
  chart.validation = thinned(drawable(curve.validation), kPointsMax / 4);
  for (const LossSeries& each : curve.others) {
    chart.others.push_back({each.name, thinned(drawable(each.points), kPointsMax / 4)});
    if (chart.others.back().points.empty()) chart.others.pop_back();
  }
  chart.best = curve.best;
  chart.steps = span_of(chart, [](const LossPoint& point) { return point.step; });
  if (!chart.is_empty()) chart.steps = with_marks(chart.steps, curve.marks);
  chart.losses = with_air(span_of(chart, [](const LossPoint& point) { return point.loss; }));
  return chart;
}

void draw_rule(Svg& svg, const std::string& path, Colour colour) {
  svg.add("path", {{"d", path}, {"stroke", colour}, {"fill", "none"}});
}

void draw_step_axis(Svg& svg, const Chart& chart) {
  const Ticks marks =
      ticks({.low = chart.steps.low, .high = chart.steps.high, .count_max = 8, .step_min = 1.0});
  svg.open("g", {{"font-size", kSmallSize}, {"fill", kFadedInk}, {"text-anchor", "middle"}});
  for (const double step : marks.values) {
    const double x = chart.x({.step = step});
    draw_rule(svg, "M" + rounded(x, 2) + ' ' + rounded(kPlotTop, 2) + 'V' + rounded(kPlotBottom, 2),
              kFaintRule);
    svg.text(x, kPlotBottom + 18, tick_label(step, marks.step));
  }
  svg.text((kPlotLeft + kPlotRight) / 2, kPlotBottom + 40, "step", {{"font-size", kPlotTextSize}});
  svg.close();
}

void draw_loss_axis(Svg& svg, const Chart& chart) {
  const Ticks marks = ticks({.low = chart.losses.low, .high = chart.losses.high, .count_max = 7});
  svg.open("g", {{"font-size", kSmallSize}, {"fill", kFadedInk}, {"text-anchor", "end"}});
  for (const double loss : marks.values) {
    const double y = chart.y({.loss = loss});
    draw_rule(svg, "M" + rounded(kPlotLeft, 2) + ' ' + rounded(y, 2) + 'H' + rounded(kPlotRight, 2),
              kFaintRule);
    svg.text(kPlotLeft - 10, y + 4, tick_label(loss, marks.step));
  }
  svg.text(0, 0, "loss",
           {{"font-size", kPlotTextSize},
            {"text-anchor", "middle"},
            {"transform",
             "translate(22 " + rounded((kPlotTop + kPlotBottom) / 2, 2) + ") rotate(-90)"}});
  svg.close();
}

void draw_frame(Svg& svg) {
  draw_rule(svg,
            "M" + rounded(kPlotLeft, 2) + ' ' + rounded(kPlotTop, 2) + 'V' +
                rounded(kPlotBottom, 2) + 'H' + rounded(kPlotRight, 2),
            kRule);
}

struct Pen {
  Colour colour;
  double width = 1;
  double opacity = 1;
};

void draw_line(Svg& svg, const Chart& chart, const std::vector<LossPoint>& points, const Pen& pen) {
  if (points.size() < 2) return;
  std::string places;
  for (const LossPoint& point : points) {
    if (!places.empty()) places += ' ';
    places += rounded(chart.x(point), 1) + ',' + rounded(chart.y(point), 1);
  }
  svg.add("polyline", {{"points", places},
                       {"fill", "none"},
                       {"stroke", pen.colour},
                       {"stroke-width", pen.width},
                       {"stroke-opacity", pen.opacity},
                       {"stroke-linejoin", "round"},
                       {"stroke-linecap", "round"}});
}

void draw_markers(Svg& svg, const Chart& chart, const std::vector<LossPoint>& points,
                  Colour colour) {
  svg.open("g", {{"fill", colour}, {"stroke", kPaper}, {"stroke-width", 1.5}});
  for (const LossPoint& point : points) {
    const std::string tooltip = "step " + significant(point.step) + ": " + significant(point.loss);
    svg.add("circle", {{"cx", chart.x(point)}, {"cy", chart.y(point)}, {"r", 4.5}}, tooltip);
  }
  svg.close();
}

// The colour of a validation set beside the first.
Colour colour_of(std::size_t other) {
  constexpr std::array kColours = {kPink, kGreen, kOrange, kYellow};
  return kColours[other % kColours.size()];
}

void draw_curves(Svg& svg, const Chart& chart) {
  const bool has_mean = !chart.mean.empty();
  const Pen measured = has_mean ? Pen{kSkyBlue, 1, 0.7} : Pen{kBlue, 2, 1};
  draw_line(svg, chart, chart.train, measured);
  draw_line(svg, chart, chart.mean, {kBlue, 2.5, 1});
  if (chart.train.size() == 1) draw_markers(svg, chart, chart.train, kBlue);
  draw_line(svg, chart, chart.validation, {kVermilion, 2, 1});
  if (chart.validation.size() <= kMarkersMax) {
    draw_markers(svg, chart, chart.validation, kVermilion);
  }
  for (std::size_t i = 0; i < chart.others.size(); ++i) {
    const std::vector<LossPoint>& points = chart.others[i].points;
    draw_line(svg, chart, points, {colour_of(i), 2, 1});
    if (points.size() <= kMarkersMax) draw_markers(svg, chart, points, colour_of(i));
  }
  if (!chart.best) return;
  svg.open("g", {{"stroke", kVermilion}, {"stroke-width", 2}, {"fill", "none"}});
  svg.add("circle", {{"cx", chart.x(*chart.best)}, {"cy", chart.y(*chart.best)}, {"r", 9}},
          "the lowest validation loss");
  svg.close();
}

std::string value_label(double loss) {
  const double size = std::abs(loss);
  return size >= 1e-3 && size < 1e5 ? fixed(loss, 4) : significant(loss);
}

void draw_last_value(Svg& svg, const std::string& name, double loss, double y, Colour colour) {
  svg.text(kPlotRight + 12, y + 4, name + ' ' + value_label(loss),
           {{"font-size", kPlotTextSize}, {"font-weight", "bold"}, {"fill", colour}});
}

// Right of the lines' ends, pushed apart where they would overlap.
void draw_last_values(Svg& svg, const Chart& chart) {
  const std::vector<LossPoint>& line = chart.mean.empty() ? chart.train : chart.mean;
  const bool has_both = !line.empty() && !chart.validation.empty();
  double train_y = line.empty() ? 0 : chart.y(line.back());
  double validation_y = chart.validation.empty() ? 0 : chart.y(chart.validation.back());
  const double overlap = kLabelDistance - std::abs(train_y - validation_y);
  if (has_both && overlap > 0) {
    const double sign = train_y < validation_y ? -1 : 1;
    train_y += sign * overlap / 2;
    validation_y -= sign * overlap / 2;
  }
  if (!line.empty())
    draw_last_value(svg, chart.mean.empty() ? "training" : "mean", line.back().loss, train_y,
                    kBlue);
  if (!chart.validation.empty()) {
    draw_last_value(svg, "validation", chart.validation.back().loss, validation_y, kVermilion);
  }
}

struct LastValue {
  std::string name;
  LossPoint point;
  Colour colour;
  double y;
};

// The same of several validation sets: from the top down, each a line's height below the last.
void draw_last_values_of_sets(Svg& svg, const LossCurve& curve, const Chart& chart) {
  std::vector<LastValue> values;
  const auto add = [&](const std::string& name, const std::vector<LossPoint>& line, Colour colour) {
    if (!line.empty()) values.push_back({name, line.back(), colour, chart.y(line.back())});
  };
  add(chart.mean.empty() ? "training" : "mean", chart.mean.empty() ? chart.train : chart.mean,
      kBlue);
  add(curve.validation_name, chart.validation, kVermilion);
  for (std::size_t i = 0; i < chart.others.size(); ++i) {
    add(chart.others[i].name, chart.others[i].points, colour_of(i));
  }
  std::ranges::stable_sort(values, {}, &LastValue::y);
  for (std::size_t i = 1; i < values.size(); ++i) {
    values[i].y = std::max(values[i].y, values[i - 1].y + kLabelDistance);
  }
  for (const LastValue& each : values) {
    draw_last_value(svg, elided(each.name, kPlotTextSize, 70), each.point.loss, each.y,
                    each.colour);
  }
}

constexpr const char* kLineMark = "h24";
constexpr const char* kTickMark = "m12 4v-8";

// Returns where the next entry begins.
double draw_legend_entry(Svg& svg, double x, const Pen& pen, const std::string& text,
                         const char* mark = kLineMark) {
  const double y = kPlotTop - 26;
  svg.add("path", {{"d", "M" + rounded(x, 2) + ' ' + rounded(y - 4, 2) + mark},
                   {"stroke", pen.colour},
                   {"stroke-width", pen.width},
                   {"stroke-opacity", pen.opacity}});
  svg.text(x + 31, y, text, {{"font-size", kPlotTextSize}});
  return x + 31 + text_width(text, kPlotTextSize) + 18;
}

void draw_head(Svg& svg, const LossCurve& curve, const Chart& chart) {
  svg.text(kMargin, 38, elided(curve.title, kTitleSize, kPlotWidth - 2 * kMargin),
           {{"font-size", kTitleSize}, {"font-weight", "bold"}});
  double x = kMargin;
  if (chart.mean.empty() && !chart.train.empty()) {
    x = draw_legend_entry(svg, x, {kBlue, 2, 1}, "training loss");
  }
  if (!chart.mean.empty()) {
    x = draw_legend_entry(svg, x, {kSkyBlue, 1.5, 1}, "training loss");
    x = draw_legend_entry(svg, x, {kBlue, 2.5, 1},
                          "mean of " + std::to_string(chart.mean_count) + " points");
  }
  if (!chart.validation.empty()) {
    const std::string name = chart.others.empty() ? "" : " of " + curve.validation_name;
    x = draw_legend_entry(svg, x, {kVermilion, 2, 1}, "validation loss" + name);
  }
  for (std::size_t i = 0; i < chart.others.size(); ++i) {
    x = draw_legend_entry(svg, x, {colour_of(i), 2, 1}, "of " + chart.others[i].name);
  }
  if (chart.is_empty()) return;
  if (!curve.marks.saved.empty()) x = draw_legend_entry(svg, x, {kGreen, 2, 1}, "saved", kTickMark);
  if (!curve.marks.not_saved.empty()) {
    x = draw_legend_entry(svg, x, {kVermilion, 2, 1}, "not saved", kTickMark);
  }
  if (!curve.marks.again.empty()) {
    draw_legend_entry(svg, x, {kOrange, 12, 0.22}, "steps done again");
  }
}

}  // namespace

std::string loss_svg(const LossCurve& curve) {
  const Chart chart = chart_of(curve);
  const LossMarks marks = chart.is_empty() ? LossMarks{} : curve.marks;
  Svg svg(kPlotWidth, kPlotHeight + break_list_height(marks), curve.title);
  draw_head(svg, curve, chart);
  if (!chart.is_empty()) {
    draw_step_axis(svg, chart);
    draw_loss_axis(svg, chart);
  }
  draw_steps_again(svg, marks, chart.frame());
  draw_frame(svg);
  draw_curves(svg, chart);
  chart.others.empty() ? draw_last_values(svg, chart) : draw_last_values_of_sets(svg, curve, chart);
  draw_marks(svg, marks, chart.frame());
  draw_break_list(svg, marks, kMargin, kPlotHeight, kPlotWidth - 2 * kMargin);
  if (chart.is_empty()) {
    svg.text((kPlotLeft + kPlotRight) / 2, (kPlotTop + kPlotBottom) / 2, "no losses to draw",
             {{"font-size", kPlotTextSize}, {"fill", kFadedInk}, {"text-anchor", "middle"}});
  }
  return std::move(svg).finish();
}

}  // namespace penstock::render
