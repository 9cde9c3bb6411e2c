#include "penstock/plan/render/run_marks.h"

#include <algorithm>

namespace penstock::render {

namespace {

// The first set's losses are the curve's own.
void add_sets(LossCurve& curve, const measure::MetricsLine& line) {
  for (const auto& [name, loss] : line.sets) {
    if (&name == &line.sets.front().first) {
      curve.validation_name = name;
      continue;
    }
    auto series = std::ranges::find(curve.others, name, &LossSeries::name);
    if (series == curve.others.end()) {
      series = curve.others.insert(series, LossSeries{.name = name, .points = {}});
    }
    series->points.push_back({static_cast<double>(line.step), loss});
  }
}

}  // namespace

void add_losses(LossCurve& curve, std::span<const measure::MetricsLine> lines) {
  for (const measure::MetricsLine& line : lines) {
    const auto step = static_cast<double>(line.step);
    if (line.loss) curve.train.push_back({step, *line.loss});
    if (!line.validation) continue;
    curve.validation.push_back({step, *line.validation});
    if (line.is_best) curve.best = curve.validation.back();
    add_sets(curve, line);
  }
}

LossMarks run_marks(const measure::RunHistory& history) {
  using measure::PartEnd;
  const auto is_stop = [](PartEnd end) {
    return end == PartEnd::Stopped || end == PartEnd::Finished;
  };
  LossMarks marks;
  for (const std::int64_t step : history.saved) marks.saved.push_back(static_cast<double>(step));
  for (const measure::FailedSave& failed : history.failed_saves) {
    marks.not_saved.push_back(static_cast<double>(failed.step));
  }
  std::ranges::sort(marks.not_saved);  // A run that came back does steps again.
  for (std::size_t i = 0; i + 1 < history.parts.size(); ++i) {
    const measure::RunPart& part = history.parts[i];
    const measure::RunPart& next = history.parts[i + 1];
    const auto last = static_cast<double>(part.last_step);
    marks.breaks.push_back({last, measure::break_text(history, i), is_stop(part.end)});
    if (next.steps_again > 0) {
      const auto first = static_cast<double>(next.after_step);
      marks.again.push_back({first, first + static_cast<double>(next.steps_again)});
    }
  }
  if (history.parts.empty()) return marks;
  const measure::RunPart& last = history.parts.back();
  if (last.end == PartEnd::Failed || last.end == PartEnd::Stopped) {
    marks.breaks.push_back(
        {static_cast<double>(last.last_step), measure::end_text(history), is_stop(last.end)});
  }
  return marks;
}

}  // namespace penstock::render
