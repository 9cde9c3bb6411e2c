#include "penstock/plan/render/timeline_svg.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/render/op_style.h"
#include "penstock/plan/render/picture_layout.h"
#include "penstock/plan/render/shares.h"
#include "penstock/plan/render/svg.h"
#include "penstock/plan/render/ticks.h"

namespace penstock::render {
namespace {

constexpr double kTickDistanceMin = 64;
constexpr double kShareWidth = 3;  // Width of a column of shares.
constexpr std::string_view kHatch = "penstock-idle";

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

std::string hatch() { return str("url(#", kHatch, ')'); }

// The mark's place in a box of that height, as an offset from the box's top.
double mark_offset(Mark mark, double height) { return mark == Mark::Over ? 2.0 : height - 4.0; }

std::string line_across(double x, double y, double width) {
  return 'M' + rounded(x, 2) + ' ' + rounded(y, 2) + 'h' + rounded(width, 2);
}

void draw_marks(Svg& svg, const std::string& path) {
  if (path.empty()) return;
  svg.add("path", {{"d", path}, {"stroke", kPaper}, {"stroke-width", 2.0}, {"opacity", 0.75}});
}

// A swatch per fill, side by side, and the text; returns where the next entry begins.
double draw_legend_entry(Svg& svg, double x, const std::vector<std::string>& fills, Mark mark,
                         std::string_view text) {
  const double width = 22;
  const double height = 13;
  const double top = kHeadHeight - 26 - height + 2;
  std::string marks;
  for (const std::string& fill : fills) {
    svg.add("rect", {{"x", x}, {"y", top}, {"width", width}, {"height", height}, {"fill", fill}});
    if (mark != Mark::Plain) marks += line_across(x, top + mark_offset(mark, height) + 1, width);
    x += width;
  }
  draw_marks(svg, marks);
  svg.text(x + 7, kHeadHeight - 26, text, {{"font-size", kTextSize}});
  return x + 7 + text_width(text, kTextSize) + 22;
}

// At most four of a row of shades, the first and the last among them.
std::vector<std::string> swatches(const OpStyle& style, std::size_t shades) {
  constexpr std::size_t kSwatchesMax = 4;
  const std::size_t count = std::min(shades, kSwatchesMax);
  std::vector<std::string> fills;
  fills.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t shade = count == 1 ? 0 : i * (shades - 1) / (count - 1);
    fills.push_back(to_string(colour_of(style, shade, shades)));
  }
  return fills;
}

std::set<schedule::Op> ops_in(const Timeline& timeline) {
  std::set<schedule::Op> ops;
  for (const Row& row : timeline.rows) {
    for (const Bar& bar : row.lanes.front().bars) ops.insert(bar.action.op);
  }
  return ops;
}

bool has_pairs(const Timeline& timeline) {
  return std::ranges::any_of(timeline.rows, [](const Row& row) {
    return std::ranges::any_of(row.lanes.front().bars,
                               [](const Bar& bar) { return bar.action.overlaps_next; });
  });
}

void draw_head(Svg& svg, const Layout& layout) {
  const Timeline& timeline = layout.timeline;
  svg.text(kMargin, kMargin + 14,
           elided(timeline.title, kTitleSize, layout.picture_width - 2 * kMargin),
           {{"font-size", kTitleSize}, {"font-weight", "bold"}});
  double x = kMargin;
  for (const schedule::Op op : ops_in(timeline)) {
    const OpStyle& style = style_of(op);
    x = draw_legend_entry(svg, x, swatches(style, layout.shades), style.mark, style.name);
  }
  x = draw_legend_entry(svg, x, {hatch()}, Mark::Plain, "idle");
  if (layout.shades > 1) {
    x = draw_legend_entry(svg, x, {}, Mark::Plain, "darker: the rank's later stages");
  }
  if (has_pairs(timeline)) draw_legend_entry(svg, x, {}, Mark::Plain, "underlined: overlapped");
}

void draw_row_labels(Svg& svg, const Layout& layout, const Panel& panel) {
  svg.open("g", {{"text-anchor", "end"}});
  const std::size_t every = layout.rows_per_label();
  for (std::size_t r = 0; r < layout.timeline.rows.size(); r += every) {
    const Row& row = layout.timeline.rows[r];
    const double x = layout.left - kLabelGap;
    const double y = layout.row_top(panel, r);
    if (layout.lane_height >= kLaneHeightForStages) {
      svg.text(x, y + 13, row.name, {{"font-size", kTextSize}, {"font-weight", "bold"}});
      svg.text(x, y + 25, stages_label(row.stages),
               {{"font-size", kSmallSize}, {"fill", kFadedInk}});
    } else {
      const double size = std::clamp(layout.lane_height, 8.0, kTextSize);
      svg.text(x, y + layout.lane_height / 2 + size * 0.36, row.name, {{"font-size", size}});
    }
  }
  svg.close();
}

void draw_lanes(Svg& svg, const Layout& layout, const Panel& panel) {
  svg.open("g", {{"fill", hatch()}});
  for (std::size_t row = 0; row < layout.timeline.rows.size(); ++row) {
    svg.add("rect", {{"x", layout.left},
                     {"y", layout.row_top(panel, row)},
                     {"width", panel.width()},
                     {"height", layout.lane_height}});
  }
  svg.close();
}

std::string tooltip_of(const Bar& bar) {
  return schedule::to_string(bar.action) + ": " + significant(bar.start) + " to " +
         significant(bar.end);
}

// A bar as far as the panel shows it, from the lane's left end.
struct Box {
  const Bar* bar;
  double x = 0;
  double width = 0;
};

bool is_shown(const Panel& panel, const Bar& bar) {
  const bool ends_before = bar.end < panel.begin || (bar.end == panel.begin && bar.start < bar.end);
  const bool is_last_moment = bar.start == panel.end && bar.start == bar.end;
  return !ends_before && (bar.start < panel.end || is_last_moment);
}

Box box_of(const Panel& panel, const Bar& bar) {
  const double from = (std::max(bar.start, panel.begin) - panel.begin) * panel.scale;
  const double to = (std::min(bar.end, panel.end) - panel.begin) * panel.scale;
  const double gap = std::min(1.0, (to - from) / 8);
  return {.bar = &bar, .x = from + gap / 2, .width = to - from - gap};
}

// The boxes of one colour.
struct Paint {
  const OpStyle* style = nullptr;
  Colour colour;
  std::vector<Box> boxes;
};

std::vector<Paint> paints_of(const Layout& layout, const Panel& panel, const Row& row) {
  std::vector<Paint> paints(schedule::kOps * layout.shades);
  for (const Bar& bar : row.lanes.front().bars) {
    if (!is_shown(panel, bar)) continue;
    const auto place = std::ranges::lower_bound(row.stages, bar.action.stage);
    PENSTOCK_CHECK(place != row.stages.end() && *place == bar.action.stage, bar.action, " on ",
                   row.name);
    const auto shade = static_cast<std::size_t>(place - row.stages.begin());
    Paint& paint = paints[static_cast<std::size_t>(bar.action.op) * layout.shades + shade];
    paint.style = &style_of(bar.action.op);
    paint.colour = colour_of(*paint.style, shade, layout.shades);
    paint.boxes.push_back(box_of(panel, bar));
  }
  std::erase_if(paints, [](const Paint& paint) { return paint.boxes.empty(); });
  return paints;
}

void draw_boxes(Svg& svg, const Layout& layout, const Paint& paint) {
  svg.open("g", {{"fill", paint.colour}});
  std::string marks;
  for (const Box& box : paint.boxes) {
    svg.add("rect", {{"x", box.x}, {"width", box.width}, {"height", layout.lane_height}},
            tooltip_of(*box.bar));
    if (paint.style->mark == Mark::Plain || box.width < 6) continue;
    marks += line_across(box.x, mark_offset(paint.style->mark, layout.lane_height) + 1, box.width);
  }
  svg.close();
  draw_marks(svg, marks);
}

void draw_numbers(Svg& svg, const Layout& layout, const Paint& paint) {
  const double base_line = layout.lane_height / 2 + layout.number_size * 0.36;
  svg.open("g", {{"fill", text_on(paint.colour)}});
  for (const Box& box : paint.boxes) {
    if (!box.bar->action.microbatch) continue;
    const std::string number = std::to_string(box.bar->action.microbatch->value);
    if (box.width < text_width(number, layout.number_size) + 3) continue;
    svg.text(box.x + box.width / 2, base_line, number);
  }
  svg.close();
}

// A line under both halves of each overlapped pair.
void draw_pairs(Svg& svg, const Layout& layout, const Panel& panel, const std::vector<Bar>& bars) {
  std::string path;
  for (std::size_t i = 0; i + 1 < bars.size(); ++i) {
    if (!bars[i].action.overlaps_next) continue;
    const double from = std::max(bars[i].start, panel.begin);
    const double to = std::min(bars[i + 1].end, panel.end);
    if (from >= to) continue;
    path += line_across((from - panel.begin) * panel.scale + 1.5, layout.lane_height + 1.5,
                        std::max(0.0, (to - from) * panel.scale - 3));
  }
  if (path.empty()) return;
  svg.add("path", {{"d", path}, {"stroke", kInk}, {"stroke-width", 1.5}});
}

void draw_row(Svg& svg, const Layout& layout, const Panel& panel, std::size_t r) {
  svg.open("g", {{"transform", "translate(" + rounded(layout.left, 2) + ' ' +
                                   rounded(layout.row_top(panel, r), 2) + ')'}});
  for (const Paint& paint : paints_of(layout, panel, layout.timeline.rows[r])) {
    draw_boxes(svg, layout, paint);
    if (layout.number_size > 0) draw_numbers(svg, layout, paint);
  }
  draw_pairs(svg, layout, panel, layout.timeline.rows[r].lanes.front().bars);
  svg.close();
}

void draw_rows(Svg& svg, const Layout& layout, const Panel& panel) {
  svg.open("g", {{"text-anchor", "middle"}, {"font-size", std::max(1.0, layout.number_size)}});
  for (std::size_t r = 0; r < layout.timeline.rows.size(); ++r) draw_row(svg, layout, panel, r);
  svg.close();
}

// Boxes of one colour as one path; neighbours of one height become one box.
class BoxPath {
 public:
  // Adds a box; boxes come from left to right.
  void add(double x, double y, double width, double height) {
    const std::string top = rounded(y - height, 1);
    const std::string tall = rounded(height, 1);
    const bool continues = top == top_ && tall == tall_ && std::abs(x - right_) < 0.01;
    if (!continues) {
      close();
      left_ = x;
      top_ = top;
      tall_ = tall;
    }
    right_ = x + width;
  }

  std::string take() {
    close();
    return std::move(path_);
  }

 private:
  void close() {
    if (tall_.empty() || tall_ == "0") return;
    const std::string width = rounded(right_ - left_, 1);
    path_ += 'M' + rounded(left_, 1) + ' ' + top_ + 'h' + width + 'v' + tall_ + "h-" + width + 'z';
  }

  std::string path_;
  double left_ = 0;
  double right_ = 0;
  std::string top_;
  std::string tall_;
};

// A path per op and row: in each column, from the bottom up, as high as the op's share of the time.
void draw_row_shares(Svg& svg, const Layout& layout, const Panel& panel, std::size_t r) {
  const auto& bars = layout.timeline.rows[r].lanes.front().bars;
  const auto count = static_cast<std::size_t>(std::max(1.0, panel.width() / kShareWidth));
  const double width = panel.width() / static_cast<double>(count);
  const auto shares = shares_of(bars, panel.end, count);
  const double bottom = layout.row_top(panel, r) + layout.lane_height;
  std::vector<double> below(count, 0.0);
  for (const OpStyle& style : kOpStyles) {
    BoxPath boxes;
    for (std::size_t i = 0; i < count; ++i) {
      const double share = shares[i][static_cast<std::size_t>(style.op)];
      boxes.add(layout.left + static_cast<double>(i) * width,
                bottom - below[i] * layout.lane_height, width, share * layout.lane_height);
      below[i] += share;
    }
    const std::string path = boxes.take();
    if (path.empty()) continue;
    svg.add("path", {{"d", path}, {"fill", colour_of(style, layout.shades - 1, layout.shades)}});
  }
}

void draw_axis(Svg& svg, const Layout& layout, const Panel& panel) {
  const double y = layout.bottom(panel) + 6;
  svg.add("path", {{"d", line_across(layout.left, y, panel.width())}, {"stroke", kRule}});
  svg.open("g", {{"font-size", kSmallSize}, {"fill", kFadedInk}, {"text-anchor", "middle"}});
  const std::string unit = layout.timeline.unit.empty() ? "time" : "time, " + layout.timeline.unit;
  svg.text(layout.left - kLabelGap, y + 16, unit, {{"text-anchor", "end"}});
  if (panel.end > panel.begin && panel.scale > 0) {
    const int count_max = std::max(1, static_cast<int>(panel.width() / kTickDistanceMin));
    const Ticks marks = ticks({.low = panel.begin, .high = panel.end, .count_max = count_max});
    for (const double time : marks.values) {
      const double x = layout.left + (time - panel.begin) * panel.scale;
      svg.add("path", {{"d", "M" + rounded(x, 2) + ' ' + rounded(y, 2) + "v5"}, {"stroke", kRule}});
      svg.text(x, y + 16, tick_label(time, marks.step));
    }
  }
  svg.close();
}

void draw_panel(Svg& svg, const Layout& layout, const Panel& panel) {
  if (!panel.title.empty()) {
    svg.text(kMargin, panel.top - 8, panel.title,
             {{"font-size", kTextSize}, {"font-weight", "bold"}});
  }
  draw_row_labels(svg, layout, panel);
  draw_lanes(svg, layout, panel);
  if (panel.shows == Shows::Boxes) {
    draw_rows(svg, layout, panel);
  } else {
    for (std::size_t r = 0; r < layout.timeline.rows.size(); ++r) {
      draw_row_shares(svg, layout, panel, r);
    }
  }
  draw_axis(svg, layout, panel);
}

void draw_caption(Svg& svg, const Layout& layout) {
  double y = layout.caption_top + 12;
  for (const std::string& line : layout.caption) {
    svg.text(kMargin, y, line, {{"font-size", kTextSize}});
    y += kLineHeight;
  }
}

}  // namespace

std::string timeline_svg(const Timeline& timeline) {
  const Layout layout = lay_out(timeline);
  Svg svg(layout.picture_width, layout.picture_height, timeline.title);
  define_hatch(svg);
  draw_head(svg, layout);
  for (const Panel& panel : layout.panels) draw_panel(svg, layout, panel);
  draw_caption(svg, layout);
  return std::move(svg).finish();
}

}  // namespace penstock::render
