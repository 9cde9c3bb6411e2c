#include "penstock/plan/render/picture_layout.h"

#include <algorithm>
#include <cmath>

#include "penstock/core/text.h"
#include "penstock/plan/render/svg.h"
#include "penstock/plan/render/ticks.h"

namespace penstock::render {
namespace {

constexpr double kWidthMin = 960;   // Width of the lanes.
constexpr double kWidthMax = 1100;  // Width of the lanes; what a page of text shows at full size.
constexpr double kAxisHeight = 38;
constexpr double kPanelTitleHeight = 26;
constexpr double kNumberSize = 12;
constexpr double kNumberPadding = 8;   // Left and right of a box's number, together.
constexpr double kRowsInFullMax = 72;  // Rows of all panels together.
constexpr double kRowsOfExtractsMax = 16;
constexpr double kWidthOfManyRanks = 2200;
constexpr double kBoxWidthMin = 3;
constexpr int kStepsPerLine = 20;
constexpr double kLabelHeightMin = 9.5;  // Distance from one label to the next.
constexpr std::string_view kBetween = " \xC2\xB7 ";

struct RowSize {
  std::size_t rows_max;
  double lane_height;
  double row_height;
  double number_size;
};
constexpr RowSize kRowSizes[] = {
    {8, 28, 34, kNumberSize}, {16, 26, 31, kNumberSize}, {80, 17, 20, 11}, {200, 8, 10, 0}};
constexpr RowSize kSmallestRow{0, 3, 4, 0};

const RowSize& row_size(std::size_t rows) {
  const auto* const size =
      std::ranges::find_if(kRowSizes, [&](const RowSize& each) { return rows <= each.rows_max; });
  return size == std::end(kRowSizes) ? kSmallestRow : *size;
}

std::size_t most_stages(const Timeline& timeline) {
  std::size_t most = 1;
  for (const Row& row : timeline.rows) most = std::max(most, row.stages.size());
  return most;
}

double label_width(const Timeline& timeline) {
  double width = 0;
  for (const Row& row : timeline.rows) {
    width = std::max(
        {width, text_width(stages_label(row.stages), kSmallSize), text_width(row.name, kTextSize)});
  }
  return width;
}

std::int32_t last_microbatch(const Timeline& timeline) {
  std::int32_t last = 0;
  for (const Row& row : timeline.rows) {
    for (const Bar& bar : row.lanes.front().bars) {
      if (bar.action.microbatch) last = std::max(last, bar.action.microbatch->value);
    }
  }
  return last;
}

// The length that a quarter of the bars do not exceed, of those that take any time; 0: none does.
double short_bar(const Timeline& timeline) {
  std::vector<double> lengths;
  for (const Row& row : timeline.rows) {
    for (const Bar& bar : row.lanes.front().bars) {
      if (bar.end > bar.start) lengths.push_back(bar.end - bar.start);
    }
  }
  if (lengths.empty()) return 0;
  const auto quarter = lengths.begin() + std::ssize(lengths) / 4;
  std::ranges::nth_element(lengths, quarter);
  return *quarter;
}

// The scale at which a short bar holds the widest number.
double readable_scale(const Timeline& timeline) {
  const double length = short_bar(timeline);
  const std::string number = std::to_string(last_microbatch(timeline));
  return length > 0 ? (text_width(number, kNumberSize) + kNumberPadding) / length : 0;
}

Panel whole(const Timeline& timeline, double scale) {
  return {.end = timeline.end, .scale = scale, .lanes_width = timeline.end * scale};
}

// The time in lines below each other, each as long as a whole number of steps of the axis.
std::vector<Panel> in_lines(const Timeline& timeline, double lines) {
  const double shortest = timeline.end / lines;
  const double step = ticks({.high = shortest, .count_max = kStepsPerLine}).step;
  const double stretch = std::ceil(shortest / step) * step;
  std::vector<Panel> panels;
  for (double begin = 0; begin < timeline.end;
       begin = static_cast<double>(panels.size()) * stretch) {
    Panel panel{.begin = begin, .end = std::min(begin + stretch, timeline.end)};
    panel.scale = kWidthMax / stretch;
    panel.lanes_width = (panel.end - panel.begin) * panel.scale;
    panels.push_back(panel);
  }
  return panels;
}

// The whole as shares, the beginning and the end in full.
std::vector<Panel> in_extracts(const Timeline& timeline, double scale) {
  Panel all = whole(timeline, kWidthMax / timeline.end);
  all.title = "the whole: shares of time";
  all.shows = Shows::Shares;
  const double stretch = kWidthMax / scale;
  const Panel beginning{
      .title = "the beginning", .end = stretch, .scale = scale, .lanes_width = kWidthMax};
  Panel ending = beginning;
  ending.title = "the end";
  ending.begin = timeline.end - stretch;
  ending.end = timeline.end;
  return {all, beginning, ending};
}

// Many ranks: boxes without numbers, or if these get too narrow shares.
Panel in_one_wide_line(const Timeline& timeline) {
  Panel panel = whole(timeline, kWidthOfManyRanks / timeline.end);
  if (short_bar(timeline) * panel.scale < kBoxWidthMin) panel.shows = Shows::Shares;
  return panel;
}

std::vector<Panel> panels_of(const Timeline& timeline) {
  const double scale = readable_scale(timeline);
  const double wanted = timeline.end * scale;
  if (wanted <= kWidthMax) {
    return {whole(timeline, timeline.end > 0 ? std::max(wanted, kWidthMin) / timeline.end : 0)};
  }
  const auto rows = static_cast<double>(timeline.rows.size());
  const double lines = std::ceil(wanted / kWidthMax);
  if (lines * rows <= kRowsInFullMax) return in_lines(timeline, lines);
  if (rows <= kRowsOfExtractsMax) return in_extracts(timeline, scale);
  return {in_one_wide_line(timeline)};
}

void place_panels(Layout& layout) {
  double y = kHeadHeight;
  for (Panel& panel : layout.panels) {
    if (!panel.title.empty()) y += kPanelTitleHeight;
    panel.top = y;
    y = layout.bottom(panel) + kAxisHeight;
  }
  layout.caption_top = y + 6;
}

}  // namespace

std::size_t Layout::rows_per_label() const {
  std::size_t rows = 1;
  while (row_height * static_cast<double>(rows) < kLabelHeightMin) rows *= 2;
  return rows;
}

std::string stages_label(const std::vector<StageId>& stages) {
  if (stages.size() == 1) return str("stage ", stages[0]);
  if (stages.size() <= 4) return "stages " + join(stages, ", ");
  return str("stages ", stages[0], ", ", stages[1], ", ..., ", stages.back());
}

Layout lay_out(const Timeline& timeline) {
  Layout layout{.timeline = timeline, .shades = most_stages(timeline)};
  layout.left = kMargin + label_width(timeline) + kLabelGap;
  layout.panels = panels_of(timeline);
  const RowSize& size = row_size(timeline.rows.size());
  layout.lane_height = size.lane_height;
  layout.row_height = size.row_height;
  layout.number_size = size.number_size;
  double width = kWidthMin;
  for (const Panel& panel : layout.panels) width = std::max(width, panel.lanes_width);
  layout.picture_width = layout.left + width + kMargin;
  layout.caption =
      wrapped(join(timeline.notes, kBetween), kTextSize, layout.picture_width - 2 * kMargin);
  place_panels(layout);
  layout.picture_height =
      layout.caption_top + kLineHeight * static_cast<double>(layout.caption.size()) + kMargin - 8;
  return layout;
}

}  // namespace penstock::render
