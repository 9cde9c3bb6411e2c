// Timelines as one HTML page that needs nothing else: zoom, pan, what every action waited for.
//
// `penstock schedule --format html` writes it for a simulation; a measured step and the simulated
// one can stand on one page, where they zoom together.  The page's own files are in page/ and
// become part of the library when it is built.  Knows no schedule.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "penstock/render/timeline.h"

namespace penstock::render {

// More bars than this are no page, and no trace, that a browser would open.
inline constexpr std::size_t kPageBarsMax = 2'000'000;

// Throws: ConfigError for more bars.
void check_page_size(std::size_t bars);

// The same bytes on every machine.  Works from a file, without a network.
// REQUIRES: times are finite; `timelines` is not empty.
// Throws: ConfigError as check_page_size().
std::string timeline_page(std::string_view title, std::span<const Timeline> timelines);

}  // namespace penstock::render
