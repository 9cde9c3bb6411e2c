#include "penstock/plan/adapt/window_costs.h"

#include <algorithm>

#include "penstock/core/check.h"

namespace penstock::adapt {
namespace {

// Numbers of one value with quartiles: these three, and how many samples.
constexpr std::size_t kNumbers = 4;

using Times = std::optional<Quartiles>;

template <class Costs, class Visit>
void each_of(Costs& costs, const Visit& visit) {
  for (auto& stage : costs.stages) {
    for (auto* times : {&stage.forward, &stage.backward, &stage.input, &stage.weight}) {
      visit(*times);
    }
  }
  for (auto& times : costs.ranks) visit(times);
}

Quartiles sum(const Quartiles& a, const Quartiles& b) {
  return {.lower = a.lower + b.lower,
          .median = a.median + b.median,
          .upper = a.upper + b.upper,
          .samples = std::min(a.samples, b.samples)};
}

}  // namespace

Quartiles StageTimes::total() const {
  PENSTOCK_CHECK(forward && (backward || (input && weight)), "a stage that did not run");
  return sum(*forward, backward ? *backward : sum(*input, *weight));
}

Quartiles WindowCosts::step() const {
  Quartiles slowest;
  for (const Times& times : ranks) {
    if (times && times->median > slowest.median) slowest = *times;
  }
  return slowest;
}

std::vector<double> to_numbers(const WindowCosts& costs) {
  std::vector<double> numbers;
  each_of(costs, [&](const Times& times) {
    const Quartiles of = times.value_or(Quartiles());
    const auto samples = static_cast<double>(of.samples);
    numbers.insert(numbers.end(), {of.lower, of.median, of.upper, samples});
  });
  numbers.push_back(costs.latency.value_or(0.0));
  numbers.push_back(costs.latency ? 1.0 : 0.0);
  return numbers;
}

WindowCosts from_numbers(const std::vector<double>& numbers, std::size_t stages,
                         std::size_t ranks) {
  WindowCosts costs;
  costs.stages.resize(stages);
  costs.ranks.resize(ranks);
  PENSTOCK_CHECK(numbers.size() == to_numbers(costs).size(), numbers.size(), " numbers");
  auto next = numbers.begin();
  each_of(costs, [&](Times& times) {
    if (next[3] > 0) {
      times = Quartiles{.lower = next[0],
                        .median = next[1],
                        .upper = next[2],
                        .samples = static_cast<std::size_t>(next[3])};
    }
    next += kNumbers;
  });
  if (next[1] > 0) costs.latency = next[0];
  return costs;
}

std::vector<double> slowest(const std::vector<std::vector<double>>& of_replicas) {
  std::vector<double> result = of_replicas.front();
  const std::size_t with_quartiles = result.size() - 2;
  for (const std::vector<double>& other : of_replicas) {
    for (std::size_t i = 0; i < with_quartiles; i += kNumbers) {
      if (other[i + 1] <= result[i + 1]) continue;
      for (std::size_t k = i; k < i + kNumbers; ++k) result[k] = other[k];
    }
    if (other[with_quartiles] <= result[with_quartiles]) continue;
    for (std::size_t k = with_quartiles; k < result.size(); ++k) result[k] = other[k];
  }
  return result;
}

}  // namespace penstock::adapt
