// Passes on what several write, a line at a time, so that the lines of two are not mixed.
//
// remote_ranks.h has one for each stream of the ranks, which write a line in several parts: Python
// writes its end apart.  A carriage return ends a line, too, as progress bars want it.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/output.h"

namespace penstock::hosts {

class WholeLines {
 public:
  static constexpr std::size_t kLineBytesMax = std::size_t{1} << 16;  // A longer one is cut.

  // `to` outlives it.
  WholeLines(Output& to, std::size_t writers) : to_(to), begun_(writers) {}
  ~WholeLines() {
    for (std::size_t writer = 0; writer < begun_.size(); ++writer) end(writer);
  }
  WholeLines(const WholeLines&) = delete;
  WholeLines& operator=(const WholeLines&) = delete;

  void write(std::size_t writer, std::string_view bytes) {
    std::string& line = begun_[writer];
    line += bytes;
    const std::size_t last = line.find_last_of("\n\r");
    const bool is_too_long = line.size() > kLineBytesMax;
    if (last == std::string::npos && !is_too_long) return;
    const std::size_t count = is_too_long ? line.size() : last + 1;
    to_.relay(std::string_view(line).substr(0, count));
    line.erase(0, count);
  }
  // Passes on what it has begun.
  void end(std::size_t writer) {
    if (!begun_[writer].empty()) to_.relay(begun_[writer]);
    begun_[writer].clear();
  }

 private:
  Output& to_;
  std::vector<std::string> begun_;  // Lines that were begun, by writer.
};

}  // namespace penstock::hosts
