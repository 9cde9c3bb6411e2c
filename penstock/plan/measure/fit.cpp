#include "penstock/plan/measure/fit.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::measure {
namespace {

using schedule::Op;
using simulate::Costs;
using verify::PerStage;
using Rows = std::vector<std::vector<double>>;  // Rows by stage: a number, or one per microbatch.

constexpr std::array<Op, 4> kComputations = {Op::Forward, Op::Backward, Op::BackwardInput,
                                             Op::BackwardWeight};

using Level = double Quartiles::*;

double median(std::vector<double> values) { return quartiles(std::move(values)).median; }

// Sizes differ from microbatch to microbatch of one hop.
bool is_uneven(std::span<const MeasuredStep> steps) {
  for (const MeasuredStep& step : steps) {
    std::map<std::pair<StageId, Op>, std::int64_t> first;
    for (const Message& message : step.messages) {
      const std::pair hop(message.send.stage, message.send.op);
      if (first.emplace(hop, message.bytes).first->second != message.bytes) return true;
    }
  }
  return false;
}

// How long computations held their ranks, by stage, op and microbatch.
class Samples {
 public:
  Samples(std::span<const MeasuredStep> steps, const schedule::Schedule& schedule, Level level)
      : level_(level),
        stages_(static_cast<std::size_t>(schedule.stages)),
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        is_uneven_(is_uneven(steps)),
        cells_(stages_ * kComputations.size()) {
    for (Cell& cell : cells_) cell.hold_of_microbatch.resize(microbatches_);
    for (const MeasuredStep& step : steps) {
      for (const auto& rank : step.computations) {
        for (const Computation& computation : rank) add(computation);
      }
    }
  }

  std::size_t stages() const { return stages_; }
  bool ran(std::size_t stage, Op op) const { return !at(stage, op).hold.empty(); }
  bool any_ran(Op op) const {
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      if (ran(stage, op)) return true;
    }
    return false;
  }

  // REQUIRES: ran(stage, op).
  std::vector<double> cost(std::size_t stage, Op op) const {
    const Cell& cell = at(stage, op);
    const double all = quartiles(cell.hold).*level_;
    if (!is_uneven_) return {all};
    std::vector<double> costs;
    for (const auto& hold : cell.hold_of_microbatch) {
      costs.push_back(hold.empty() ? all : quartiles(hold).*level_);
    }
    return costs;
  }

  std::vector<OpCost> summary() const {
    std::vector<OpCost> costs;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      for (const Op op : kComputations) {
        if (!ran(stage, op)) continue;
        const Cell& cell = at(stage, op);
        costs.push_back({StageId(stage), op, quartiles(cell.hold), median(cell.own)});
      }
    }
    return costs;
  }

 private:
  struct Cell {
    std::vector<double> hold;
    std::vector<double> own;
    std::vector<std::vector<double>> hold_of_microbatch;
  };

  std::size_t index(std::size_t stage, Op op) const {
    const auto place = std::ranges::find(kComputations, op) - kComputations.begin();
    return stage * kComputations.size() + static_cast<std::size_t>(place);
  }
  const Cell& at(std::size_t stage, Op op) const { return cells_[index(stage, op)]; }

  void add(const Computation& computation) {
    Cell& cell = cells_[index(computation.action.stage.index(), computation.action.op)];
    cell.hold.push_back(computation.hold);
    cell.own.push_back(computation.own);
    cell.hold_of_microbatch[computation.action.microbatch->index()].push_back(computation.hold);
  }

  Level level_;
  std::size_t stages_;
  std::size_t microbatches_;
  bool is_uneven_;
  std::vector<Cell> cells_;  // Cells by stage, then op.
};

std::vector<double> sum(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(std::max(a.size(), b.size()));
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = a[a.size() == 1 ? 0 : i] + b[b.size() == 1 ? 0 : i];
  }
  return result;
}

std::vector<double> half(std::vector<double> costs) {
  for (double& cost : costs) cost /= 2;
  return costs;
}

// A stage that ran whole backwards only, or halves only, has the other by B = I + W.
void fit_computations(const Samples& samples, Fit& fit) {
  Rows forward, backward, input, weight;
  for (std::size_t stage = 0; stage < samples.stages(); ++stage) {
    forward.push_back(samples.cost(stage, Op::Forward));
    const bool has_halves = samples.ran(stage, Op::BackwardInput);
    const std::vector<double> whole =
        samples.ran(stage, Op::Backward)
            ? samples.cost(stage, Op::Backward)
            : sum(samples.cost(stage, Op::BackwardInput), samples.cost(stage, Op::BackwardWeight));
    backward.push_back(whole);
    input.push_back(has_halves ? samples.cost(stage, Op::BackwardInput) : half(whole));
    weight.push_back(has_halves ? samples.cost(stage, Op::BackwardWeight) : half(whole));
    fit.has_guessed_halves |= !has_halves;
  }
  fit.costs.forward = PerStage(std::move(forward));
  if (samples.any_ran(Op::Backward)) fit.costs.backward = PerStage(std::move(backward));
  fit.costs.input = PerStage(std::move(input));
  fit.costs.weight = PerStage(std::move(weight));
}

// Time over size.
struct Line {
  double at_zero = 0.0;
  double slope = 0.0;
};

Line line_through(const std::map<std::int64_t, std::vector<double>>& times_by_bytes, Level level) {
  std::vector<std::pair<double, double>> points;
  for (const auto& [bytes, times] : times_by_bytes) {
    points.emplace_back(static_cast<double>(bytes), quartiles(times).*level);
  }
  std::vector<double> slopes;
  for (std::size_t i = 0; i < points.size(); ++i) {
    for (std::size_t k = i + 1; k < points.size(); ++k) {
      slopes.push_back((points[k].second - points[i].second) / (points[k].first - points[i].first));
    }
  }
  Line line;
  if (!slopes.empty()) line.slope = std::max(0.0, median(slopes));
  std::vector<double> rests;
  for (const auto& [bytes, time] : points) rests.push_back(time - line.slope * bytes);
  line.at_zero = std::max(0.0, median(rests));
  return line;
}

// What stages hand on, by stage and microbatch: the largest of any step.
Rows sizes_of(std::span<const MeasuredStep> steps, const schedule::Schedule& schedule) {
  Rows sizes(static_cast<std::size_t>(schedule.stages),
             std::vector<double>(static_cast<std::size_t>(schedule.microbatches)));
  for (const MeasuredStep& step : steps) {
    for (const Message& message : step.messages) {
      if (message.send.op != Op::SendForward) continue;
      double& size = sizes[message.send.stage.index()][message.send.microbatch->index()];
      size = std::max(size, static_cast<double>(message.bytes));
    }
  }
  return sizes;
}

void fit_messages(std::span<const MeasuredStep> steps, const schedule::Schedule& schedule,
                  Level level, Fit& fit) {
  std::map<std::int64_t, std::vector<double>> times_by_bytes;
  std::vector<double> times;
  for (const MeasuredStep& step : steps) {
    for (const Message& message : step.messages) {
      if (!message.time) continue;
      times_by_bytes[message.bytes].push_back(*message.time);
      times.push_back(*message.time);
    }
  }
  if (times.empty()) return;
  fit.latency = quartiles(times);
  const Line line = line_through(times_by_bytes, level);
  fit.costs.latency = line.at_zero;
  if (line.slope == 0.0) return;
  fit.costs.bandwidth = 1.0 / line.slope;
  fit.costs.message = PerStage(sizes_of(steps, schedule));
}

void fit_reductions(std::span<const MeasuredStep> steps, const schedule::Schedule& schedule,
                    Level level, Fit& fit) {
  std::map<StageId, std::vector<double>> times;
  for (const MeasuredStep& step : steps) {
    for (const auto& reduction : step.reductions) {
      if (reduction) times[reduction->action.stage].push_back(reduction->end - reduction->start);
    }
  }
  if (times.empty()) return;
  Rows rows(static_cast<std::size_t>(schedule.stages), {0.0});
  for (const auto& [stage, samples] : times) {
    const Quartiles of_stage = quartiles(samples);
    rows[stage.index()] = {of_stage.*level};
    fit.ops.push_back({stage, Op::ReduceGradients, of_stage, of_stage.median});
  }
  fit.costs.reduce = PerStage(std::move(rows));
}

}  // namespace

Quartiles quartiles(std::vector<double> values) {
  PENSTOCK_CHECK(!values.empty(), "quartiles of nothing");
  std::ranges::sort(values);
  const auto at = [&](std::size_t quarters) {  // The mean of two neighbours where it is between.
    const std::size_t position = (values.size() - 1) * quarters;
    const double low = values[position / 4];
    return position % 4 == 0 ? low : (low + values[position / 4 + 1]) / 2;
  };
  return {.lower = at(1), .median = at(2), .upper = at(3), .samples = values.size()};
}

Fit fit(std::span<const MeasuredStep> steps, const verify::VerifiedSchedule& schedule,
        double Quartiles::* level) {
  PENSTOCK_CHECK(!steps.empty(), "a fit to no step");
  const Samples samples(steps, schedule.schedule(), level);
  Fit result;
  fit_computations(samples, result);
  fit_messages(steps, schedule.schedule(), level, result);
  result.ops = samples.summary();
  fit_reductions(steps, schedule.schedule(), level, result);
  return result;
}

}  // namespace penstock::measure
