// The layout of a timeline's picture: which stretch of time is in which panel, how high its rows
// are, how large its numbers.
//
// timeline_svg.cpp draws what is laid out here.  Knows no colours and no SVG.
// Units: pixels at the picture's own size; times as the timeline's.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/plan/render/timeline.h"

namespace penstock::render {

inline constexpr double kMargin = 24;
inline constexpr double kHeadHeight = 92;  // Title and legend.
inline constexpr double kLineHeight = 20;
inline constexpr double kLabelGap = 12;
inline constexpr double kTitleSize = 18;
inline constexpr double kTextSize = 13;
inline constexpr double kSmallSize = 11;
// Lanes as high as this have labels of two lines.
inline constexpr double kLaneHeightForStages = 26;

enum class Shows : std::uint8_t {
  Boxes,   // Every action.
  Shares,  // Shares of time, by op.
};

// All rows over one stretch of time.
struct Panel {
  std::string title;  // May be empty.
  Shows shows = Shows::Boxes;
  double begin = 0;  // Begin and end in time.
  double end = 0;
  double scale = 0;  // Pixels per unit of time.
  double top = 0;    // Top of the first lane.
  double lanes_width = 0;

  double width() const { return lanes_width; }
};

struct Layout {
  const Timeline& timeline;
  std::size_t shades = 1;  // Most stages on one rank.
  double left = 0;         // Left edge of the lanes.
  double lane_height = 0;
  double row_height = 0;
  double number_size = 0;  // Size of a box's text; 0: none fits.
  std::vector<Panel> panels;
  std::vector<std::string> caption;  // Caption by line.
  double caption_top = 0;
  double picture_width = 0;
  double picture_height = 0;

  double row_top(const Panel& panel, std::size_t row) const {
    return panel.top + row_height * static_cast<double>(row);
  }
  double bottom(const Panel& panel) const {
    return row_top(panel, timeline.rows.size()) - row_height + lane_height;
  }
  // 1 where there is room for all labels.
  std::size_t rows_per_label() const;
};

// "stage 3", "stages 1, 5", "stages 0, 4, ..., 28".
std::string stages_label(const std::vector<StageId>& stages);

// The layout keeps a reference to `timeline`.
Layout lay_out(const Timeline& timeline);

}  // namespace penstock::render
