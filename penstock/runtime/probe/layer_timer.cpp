#include "penstock/runtime/probe/layer_timer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/runtime/probe/one_layer.h"
#include "penstock/runtime/stage/backward.h"
#include "penstock/runtime/stage/cut.h"

namespace penstock::probe {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Function = std::function<nn::Values(const nn::Values&)>;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

template <class Run>
double seconds_of(const Run& run) {
  const auto start = SteadyClock::now();
  run();
  return seconds_since(start);
}

// One function of a microbatch, and how long its passes took.
class Timed {
 public:
  Timed(Function function, nn::Values inputs)
      : function_(std::move(function)), inputs_(std::move(inputs)) {}

  // What the function gives, without a graph.
  nn::Values outputs() const { return stage::detached(forward().outputs); }

  // A microbatch with a whole backward, and one with its halves.
  void repeat() {
    Run whole;
    forward_.push_back(seconds_of([&] { whole = forward(); }));
    nn::Values gradients = gradients_of(whole.outputs);
    backward_.push_back(
        seconds_of([&] { stage::backward(whole.outputs, gradients, whole.leaves); }));
    Run halves = forward();
    gradients = gradients_of(halves.outputs);
    stage::SplitBackward split;
    input_.push_back(seconds_of(
        [&] { split = stage::backward_input(halves.outputs, gradients, halves.leaves); }));
    weight_.push_back(seconds_of([&] { split.weights.run(); }));
  }

  // The first ones pay for memory and for the gradients that they make.
  void forget() {
    for (auto* times : {&forward_, &backward_, &input_, &weight_}) times->clear();
  }

  PassTimes times() const {
    return {spread_of(forward_), spread_of(backward_), spread_of(input_), spread_of(weight_)};
  }

 private:
  struct Run {
    nn::Values leaves;
    nn::Values outputs;
  };

  Run forward() const {
    const c10::AutoGradMode grad_mode(true);
    stage::Cut cut = stage::cut_off(inputs_);
    return {.leaves = std::move(cut.leaves), .outputs = function_(cut.values)};
  }

  Function function_;
  nn::Values inputs_;
  std::vector<double> forward_;
  std::vector<double> backward_;
  std::vector<double> input_;
  std::vector<double> weight_;
};

// The numbers of a sorted list, and those between two of them.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// The function of a layer that nobody shares.
Function function_of(const std::vector<nn::LayerSpec>& model, std::size_t index,
                     const Timing& timing) {
  const auto parts = build_alone(model, index, {.seed = timing.seed, .type = timing.type}).parts;
  return [parts, seed = timing.seed](const nn::Values& values) {
    return parts->runs.front()(values, {.seed = seed});
  };
}

}  // namespace

Spread spread_of(std::vector<double> numbers) {
  PENSTOCK_CHECK(!numbers.empty(), "no numbers");
  std::ranges::sort(numbers);
  return {.median = quantile(numbers, 0.5),
          .lower = quantile(numbers, 0.25),
          .upper = quantile(numbers, 0.75)};
}

ModelTimes time_model(const std::vector<nn::LayerSpec>& model, const nn::Values& inputs,
                      const nn::Values& targets, const nn::Loss& loss, const Timing& timing) {
  ModelTimes result;
  std::vector<Timed> timed;         // Times by kind, then of the loss.
  std::vector<nn::Values> outputs;  // Outputs by kind.
  std::map<Likeness, std::size_t> known;
  nn::Values values = inputs;
  for (std::size_t i = 0; i < model.size(); ++i) {
    const Likeness likeness = likeness_of(model[i], nn::form_of(values));
    const auto [found, is_new] = known.emplace(likeness, timed.size());
    if (is_new) {
      timed.emplace_back(function_of(model, i, timing), values);
      outputs.push_back(timed.back().outputs());
      result.kinds.push_back({.type = model[i].meta.type});
    }
    result.kinds[found->second].layers.push_back(static_cast<std::int64_t>(i));
    values = outputs[found->second];
  }
  timed.emplace_back([&](const nn::Values& last) { return nn::Values(loss(last, targets)); },
                     values);

  for (Timed& each : timed) each.repeat();
  for (Timed& each : timed) each.forget();
  const double budget = timing.seconds * static_cast<double>(timed.size());
  const auto start = SteadyClock::now();
  double spent = 0.0;
  while (result.repeats < kRepeatsMin || spent < budget) {
    for (Timed& each : timed) each.repeat();
    ++result.repeats;
    spent = seconds_since(start);
    timing.progress(std::min({spent / budget, 1.0}));
  }
  for (std::size_t kind = 0; kind < result.kinds.size(); ++kind) {
    result.kinds[kind].times = timed[kind].times();
  }
  result.loss = timed.back().times();
  return result;
}

}  // namespace penstock::probe
