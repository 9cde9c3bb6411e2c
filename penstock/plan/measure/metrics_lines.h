// The lines of metrics.jsonl, as far as a curve needs them.
//
// run/ writes the lines and keeps the earlier ones of a run that goes on; the launcher asks for the
// last step; `penstock report` draws the losses.  Knows no files.
// Units: as in docs/run_directory.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::measure {

struct MetricsLine {
  std::int64_t step = 0;                   // Counts from 1.
  std::optional<double> loss, validation;  // Absent where the line has none, or no finite one.
  // The losses by name, where there are several validation sets, or one with a name.
  std::vector<std::pair<std::string, double>> sets;
  bool is_best = false;   // No earlier validation was as low.
  std::string_view text;  // The line, without its line feed.
};

inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kSamplesFile = "samples.jsonl";
inline constexpr std::size_t kMetricsBytesMax = std::size_t{2} << 30;

// A line that is none, because a process died in it, is left out.
// Lifetime: what is returned refers to `text`.
std::vector<MetricsLine> metrics_lines(std::string_view text);

// The lines of `text` that are of steps up to `step`, each with its line feed; of any file whose
// lines have a step.
std::string lines_up_to(std::string_view text, std::int64_t step);

// The number of steps behind `step` of which `text` has a line, or has one of a later step.
std::int64_t steps_behind(std::int64_t step, std::string_view text);

}  // namespace penstock::measure
