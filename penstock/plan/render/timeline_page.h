// Timelines as one HTML page that needs nothing else: zoom, pan, what every action waited for.
//
// `penstock schedule --format html` writes it for a simulation.  `penstock report` writes it for a
// measured step and the simulated one, which zoom together, with pictures and tables below.  A page
// of pictures and tables alone is what `penstock report` writes of a run without recorded steps.
// The page's own files are in page/ and become part of the library when it is built.  Knows no
// schedule.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan/render/timeline.h"

namespace penstock::render {

// More bars than this are no page, and no trace, that a browser would open.
inline constexpr std::size_t kPageBarsMax = 2'000'000;

// Texts in columns, below the timelines; the first to the left, the others, numbers, to the right.
struct Table {
  std::string title;
  std::string note;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  // The first column has actions of the first timeline: a click there shows them.
  bool begins_with_actions = false;
};

// A picture between the timelines and the tables.
struct Figure {
  std::string title;
  std::string note;
  std::string svg;  // A result of Svg::finish().
};

// Throws: ConfigError for more bars.
void check_page_size(std::size_t bars);

// The same bytes on every machine.  Works from a file, without a network.
// REQUIRES: times are finite; there is a timeline or a figure; a row has a text for each column.
// Throws: ConfigError as check_page_size().
std::string timeline_page(std::string_view title, std::span<const Timeline> timelines,
                          std::span<const Table> tables = {}, std::span<const Figure> figures = {});

}  // namespace penstock::render
