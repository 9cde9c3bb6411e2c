// Draws how the loss fell: a line for training and its moving average, points for each validation
// set, and marks of what happened to the run.
//
// The trainer writes it next to its log at the end of a run; `penstock report` and the
// documentation show it.  Knows no log format: the caller brings the points. Units: steps and
// losses as the caller counts them.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace penstock::render {

struct LossPoint {
  double step = 0;
  double loss = 0;
  friend bool operator==(const LossPoint&, const LossPoint&) = default;
};

// The run ended after this step, for now or for good.
struct LossBreak {
  double step = 0;
  std::string text;      // One line, which the list below the chart shows.
  bool is_stop = false;  // Stopped as asked; false: by a failure.
  friend bool operator==(const LossBreak&, const LossBreak&) = default;
};

// The steps behind `first`, up to `last`.
struct LossRange {
  double first = 0;
  double last = 0;
  friend bool operator==(const LossRange&, const LossRange&) = default;
};

struct LossMarks {
  std::vector<double> saved;      // Steps, rising.
  std::vector<double> not_saved;  // Steps, rising.
  std::vector<LossBreak> breaks;
  std::vector<LossRange> again;  // Steps that were taken twice.
  friend bool operator==(const LossMarks&, const LossMarks&) = default;
};

// The losses of a validation set beside the first one.
struct LossSeries {
  std::string name;
  std::vector<LossPoint> points;
};

struct LossCurve {
  std::vector<LossPoint> train;
  std::vector<LossPoint> validation;
  std::string validation_name;  // Empty: the set has none.
  std::vector<LossSeries> others;
  std::optional<LossPoint> best;  // The lowest of `validation`, where a run looks for it.
  std::string title;
  LossMarks marks;
};

// The picture as the text of one SVG file, the same bytes on every machine.  Points that are not
// finite are left out; so many that a picture cannot show them are thinned, but no peak is lost.
// Without points there are no marks, too.
std::string loss_svg(const LossCurve& curve);

}  // namespace penstock::render
