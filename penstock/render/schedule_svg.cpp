#include "penstock/render/schedule_svg.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/render/number.h"
#include "penstock/render/palette.h"
#include "penstock/render/svg.h"
#include "penstock/render/ticks.h"

namespace penstock::render {
namespace {

using schedule::Op;
using schedule::Schedule;
using simulate::Event;
using simulate::Simulation;
using verify::VerifiedSchedule;

constexpr double kMargin = 24;
constexpr double kLanesWidthMin = 960;
constexpr double kLanesWidthMax = 4000;
constexpr double kLaneHeight = 34;
constexpr double kRowHeight = 42;
constexpr double kHeadHeight = 92;  // Title and legend.
constexpr double kAxisHeight = 44;
constexpr double kLineHeight = 20;
constexpr double kTickDistanceMin = 64;
constexpr double kLabelGap = 12;

constexpr double kTitleSize = 18;
constexpr double kTextSize = 13;
constexpr double kSmallSize = 11;
constexpr double kNumberSize = 12;
constexpr double kNumberPadding = 6;  // Left and right of a box's number, together.

constexpr std::string_view kHatch = "penstock-idle";
constexpr std::string_view kBetween = " \xC2\xB7 ";

std::string counted(std::int32_t count, std::string_view noun) {
  return std::to_string(count) + ' ' + std::string(noun) + (count == 1 ? "" : "s");
}

// "1f1b, 4 ranks, 8 microbatches"; with the stages where they are not one per rank.
std::string title_of(const Schedule& schedule) {
  std::string title = schedule.name + ", " + counted(schedule.ranks(), "rank");
  if (schedule.stages != schedule.ranks()) title += ", " + counted(schedule.stages, "stage");
  title += ", " + std::to_string(schedule.microbatches);
  return title + (schedule.microbatches == 1 ? " microbatch" : " microbatches");
}

std::vector<std::vector<StageId>> stages_by_rank(const VerifiedSchedule& verified) {
  std::vector<std::vector<StageId>> stages(verified.schedule().programs.size());
  for (std::int32_t stage = 0; stage < verified.schedule().stages; ++stage) {
    stages[verified.rank_of(StageId(stage)).index()].emplace_back(stage);
  }
  return stages;
}

// "stage 3", "stages 1, 5", "stages 0, 4, ..., 28".
std::string stages_label(const std::vector<StageId>& stages) {
  if (stages.size() == 1) return "stage " + std::to_string(stages[0].value);
  std::vector<std::string> numbers;
  numbers.reserve(stages.size());
  for (const StageId stage : stages) numbers.push_back(std::to_string(stage.value));
  if (numbers.size() > 4) {
    numbers.erase(numbers.begin() + 2, numbers.end() - 1);
    numbers.insert(numbers.end() - 1, "...");
  }
  return "stages " + join(numbers, ", ");
}

std::string bubble_text(const Simulation& simulation) {
  const double busy = std::accumulate(simulation.busy.begin(), simulation.busy.end(), 0.0);
  const double all = simulation.makespan * static_cast<double>(simulation.busy.size());
  return fixed(all > 0 ? 100 * (1 - busy / all) : 0, 1) + '%';
}

std::string caption_of(const VerifiedSchedule& verified, const Simulation& simulation) {
  std::vector<std::string> peaks;
  peaks.reserve(verified.facts().peak_activations.size());
  for (const std::int32_t peak : verified.facts().peak_activations) {
    peaks.push_back(std::to_string(peak));
  }
  std::string caption = "makespan " + significant(simulation.makespan);
  caption += std::string(kBetween) + "bubble " + bubble_text(simulation);
  return caption + std::string(kBetween) + "peak activations by rank: " + join(peaks, ", ");
}

struct Picture {
  const VerifiedSchedule& verified;
  const Simulation& simulation;
  std::string title;
  std::vector<std::vector<StageId>> stages;  // By rank, rising.
  std::size_t chunks = 1;                    // Most stages on one rank.
  double left = 0;                           // Of the lanes.
  double width = 0;                          // Of the lanes.
  double scale = 0;                          // Pixels per unit of time.
  double number_width = 0;                   // Of the widest microbatch number.
  std::vector<std::string> caption;          // By line.

  double right() const { return left + width; }
  double lane_top(std::size_t rank) const {
    return kHeadHeight + kRowHeight * static_cast<double>(rank);
  }
  double bottom() const { return lane_top(stages.size()) - kRowHeight + kLaneHeight; }
  double caption_top() const { return bottom() + kAxisHeight; }
  double height() const {
    return caption_top() + kLineHeight * static_cast<double>(caption.size()) + kMargin - 8;
  }
};

// Wide enough for a number in the narrowest box, within limits.
double lanes_width(const Simulation& simulation, double number_width) {
  double shortest_box = std::numeric_limits<double>::infinity();
  for (const Event& event : simulation.events) {
    const double duration = event.end - event.start;
    if (duration > 0) shortest_box = std::min(shortest_box, duration);
  }
  const double wanted = simulation.makespan / shortest_box * (number_width + kNumberPadding + 2);
  return std::clamp(wanted, kLanesWidthMin, kLanesWidthMax);
}

Picture lay_out(const VerifiedSchedule& verified, const Simulation& simulation) {
  Picture picture{.verified = verified, .simulation = simulation};
  const Schedule& schedule = verified.schedule();
  picture.stages = stages_by_rank(verified);
  double label_width = 0;
  for (std::size_t rank = 0; rank < picture.stages.size(); ++rank) {
    const auto& stages = picture.stages[rank];
    picture.chunks = std::max(picture.chunks, stages.size());
    label_width = std::max({label_width, text_width(stages_label(stages), kSmallSize),
                            text_width("rank " + std::to_string(rank), kTextSize)});
  }
  picture.left = kMargin + label_width + kLabelGap;
  const std::string last_number = std::to_string(schedule.microbatches - 1);
  picture.number_width = text_width(last_number, kNumberSize);
  picture.width = lanes_width(simulation, picture.number_width);
  picture.scale = simulation.makespan > 0 ? picture.width / simulation.makespan : 0;
  const double line = picture.right() - kMargin;
  picture.title = title_of(schedule);
  picture.caption = wrapped(caption_of(verified, simulation), kTextSize, line);
  return picture;
}

struct Style {
  Op op;
  std::string_view name;
  Colour alone;  // Where every rank has one stage.
  Colour first;  // Else from a rank's first stage
  Colour last;   // to its last one.
};

constexpr std::array<Style, 4> kStyles = {{
    {Op::Forward, "forward", kBlue, kSkyBlue, kBlue},
    {Op::Backward, "backward", kOrange, kOrange, kVermilion},
    {Op::BackwardInput, "input gradients", kPink, kLightPink, kPink},
    {Op::BackwardWeight, "weight gradients", kGreen, kLightGreen, kGreen},
}};

const Style& style_of(Op op) {
  const auto style = std::ranges::find(kStyles, op, &Style::op);
  PENSTOCK_CHECK(style != kStyles.end(), to_string(op), " takes no time");
  return *style;
}

Colour colour_of(const Picture& picture, Op op, std::size_t chunk) {
  const Style& style = style_of(op);
  if (picture.chunks == 1) return style.alone;
  const double share = static_cast<double>(chunk) / static_cast<double>(picture.chunks - 1);
  return blend(style.first, style.last, share);
}

void define_hatch(Svg& svg) {
  svg.open("defs", {});
  svg.open("pattern", {{"id", kHatch},
                       {"width", 6.0},
                       {"height", 6.0},
                       {"patternUnits", "userSpaceOnUse"},
                       {"patternTransform", "rotate(45)"}});
  svg.add("rect", {{"width", 6.0}, {"height", 6.0}, {"fill", kShade}});
  svg.add("rect", {{"width", 1.0}, {"height", 6.0}, {"fill", kFaintRule}});
  svg.close();
  svg.close();
}

// A swatch per colour, side by side, and the text; returns where the next entry begins.
double draw_legend_entry(Svg& svg, double x, const std::vector<std::string>& fills,
                         std::string_view text) {
  const double width = 22;
  const double height = 13;
  const double base_line = kHeadHeight - 26;
  for (const std::string& fill : fills) {
    svg.add("rect", {{"x", x},
                     {"y", base_line - height + 2},
                     {"width", width},
                     {"height", height},
                     {"fill", fill}});
    x += width;
  }
  svg.text(x + 7, base_line, text, {{"font-size", kTextSize}});
  return x + 7 + text_width(text, kTextSize) + 22;
}

void draw_head(Svg& svg, const Picture& picture) {
  const double line = picture.right() - kMargin;
  svg.text(kMargin, kMargin + 14, elided(picture.title, kTitleSize, line),
           {{"font-size", kTitleSize}, {"font-weight", "bold"}});
  double x = kMargin;
  for (const Style& style : kStyles) {
    const auto drawn = [&](const Event& event) { return event.action.op == style.op; };
    if (std::ranges::none_of(picture.simulation.events, drawn)) continue;
    std::vector<std::string> fills;
    fills.reserve(picture.chunks);
    for (std::size_t chunk = 0; chunk < picture.chunks; ++chunk) {
      fills.push_back(to_string(colour_of(picture, style.op, chunk)));
    }
    x = draw_legend_entry(svg, x, fills, style.name);
  }
  x = draw_legend_entry(svg, x, {"url(#" + std::string(kHatch) + ")"}, "idle");
  if (picture.chunks > 1) draw_legend_entry(svg, x, {}, "darker: the rank's later stages");
}

void draw_row_labels(Svg& svg, const Picture& picture) {
  svg.open("g", {{"text-anchor", "end"}});
  for (std::size_t rank = 0; rank < picture.stages.size(); ++rank) {
    const double x = picture.left - kLabelGap;
    const double y = picture.lane_top(rank);
    svg.text(x, y + 15, "rank " + std::to_string(rank),
             {{"font-size", kTextSize}, {"font-weight", "bold"}});
    svg.text(x, y + 29, stages_label(picture.stages[rank]),
             {{"font-size", kSmallSize}, {"fill", kFadedInk}});
  }
  svg.close();
}

void draw_lanes(Svg& svg, const Picture& picture) {
  svg.open("g", {{"fill", "url(#" + std::string(kHatch) + ")"}});
  for (std::size_t rank = 0; rank < picture.stages.size(); ++rank) {
    svg.add("rect", {{"x", picture.left},
                     {"y", picture.lane_top(rank)},
                     {"width", picture.width},
                     {"height", kLaneHeight}});
  }
  svg.close();
}

std::string tooltip_of(const Event& event) {
  return schedule::to_string(event.action) + " on rank " + std::to_string(event.rank.value) + ": " +
         significant(event.start) + " to " + significant(event.end);
}

void draw_box(Svg& svg, const Picture& picture, const Event& event) {
  const auto& stages = picture.stages[event.rank.index()];
  const auto place = std::find(stages.begin(), stages.end(), event.action.stage);
  PENSTOCK_CHECK(place != stages.end(), event.action, " on rank ", event.rank);
  const auto chunk = static_cast<std::size_t>(place - stages.begin());
  const Colour colour = colour_of(picture, event.action.op, chunk);

  const double x = picture.left + event.start * picture.scale;
  const double y = picture.lane_top(event.rank.index());
  const double width = (event.end - event.start) * picture.scale;
  const double gap = std::min(1.0, width / 8);
  svg.add("rect",
          {{"x", x + gap / 2},
           {"y", y},
           {"width", width - gap},
           {"height", kLaneHeight},
           {"fill", colour}},
          tooltip_of(event));
  if (width < picture.number_width + kNumberPadding) return;
  svg.text(x + width / 2, y + kLaneHeight / 2 + 4.3,
           std::to_string(event.action.microbatch.value_or(Microbatch(0)).value),
           {{"fill", text_on(colour)}});
}

void draw_boxes(Svg& svg, const Picture& picture) {
  svg.open("g", {{"text-anchor", "middle"}, {"font-size", kNumberSize}});
  for (const Event& event : picture.simulation.events) draw_box(svg, picture, event);
  svg.close();
}

void draw_axis(Svg& svg, const Picture& picture) {
  const double y = picture.bottom() + 8;
  svg.add("path", {{"d", "M" + rounded(picture.left, 2) + ' ' + rounded(y, 2) + 'H' +
                             rounded(picture.right(), 2)},
                   {"stroke", kRule}});
  svg.open("g", {{"font-size", kSmallSize}, {"fill", kFadedInk}, {"text-anchor", "middle"}});
  svg.text(picture.left - kLabelGap, y + 18, "time", {{"text-anchor", "end"}});
  if (picture.scale > 0) {
    const int count_max = static_cast<int>(picture.width / kTickDistanceMin);
    const Ticks marks = ticks({.high = picture.simulation.makespan, .count_max = count_max});
    for (const double time : marks.values) {
      const double x = picture.left + time * picture.scale;
      svg.add("path", {{"d", "M" + rounded(x, 2) + ' ' + rounded(y, 2) + "v5"}, {"stroke", kRule}});
      svg.text(x, y + 18, tick_label(time, marks.step));
    }
  }
  svg.close();
}

void draw_caption(Svg& svg, const Picture& picture) {
  double y = picture.caption_top() + 12;
  for (const std::string& line : picture.caption) {
    svg.text(kMargin, y, line, {{"font-size", kTextSize}});
    y += kLineHeight;
  }
}

}  // namespace

std::string schedule_svg(const VerifiedSchedule& schedule, const Simulation& simulation) {
  PENSTOCK_CHECK(simulation.busy.size() == schedule.schedule().programs.size(),
                 simulation.busy.size(), " ranks simulated of ", title(schedule.schedule()));
  const Picture picture = lay_out(schedule, simulation);
  Svg svg(picture.right() + kMargin, picture.height(), picture.title);
  define_hatch(svg);
  draw_head(svg, picture);
  draw_row_labels(svg, picture);
  draw_lanes(svg, picture);
  draw_boxes(svg, picture);
  draw_axis(svg, picture);
  draw_caption(svg, picture);
  return std::move(svg).finish();
}

}  // namespace penstock::render
