#include "penstock/plan/adapt/known_costs.h"

#include <algorithm>

#include "penstock/core/check.h"

namespace penstock::adapt {

void KnownCosts::Stage::learn(const StageTimes& times) {
  PENSTOCK_CHECK(times.forward && (times.backward || (times.input && times.weight)),
                 "a stage did not run");
  forward = times.forward->median;
  const Stage before = *this;
  if (times.input && times.weight) {
    input = times.input->median;
    weight = times.weight->median;
  }
  if (times.backward) {
    whole = times.backward->median;
    if (!times.input && before.input && before.backward() > 0) {
      input = *before.input * *whole / before.backward();
      weight = *before.weight * *whole / before.backward();
    }
  } else if (before.whole && before.input && *before.input + *before.weight > 0) {
    whole = *before.whole * (*input + *weight) / (*before.input + *before.weight);
  }
}

void KnownCosts::learn(const WindowCosts& window) {
  PENSTOCK_CHECK(window.stages.size() == stages_.size(), window.stages.size(), " stages");
  for (std::size_t s = 0; s < stages_.size(); ++s) stages_[s].learn(window.stages[s]);
  if (window.latency) latency_ = *window.latency;
}

simulate::Costs KnownCosts::costs() const {
  std::vector<double> forward, backward, input, weight;
  for (const Stage& stage : stages_) {
    forward.push_back(stage.forward);
    backward.push_back(stage.backward());
    input.push_back(stage.input.value_or(backward.back() / 2));
    weight.push_back(stage.input ? *stage.weight : backward.back() / 2);
  }
  simulate::Costs costs{.forward = forward, .input = input, .weight = weight, .latency = latency_};
  const auto has_whole = [](const Stage& stage) { return stage.whole.has_value(); };
  if (std::ranges::any_of(stages_, has_whole)) costs.backward = verify::PerStage(backward);
  return costs;
}

bool KnownCosts::are_halves_guessed() const {
  return std::ranges::any_of(stages_, [](const Stage& stage) { return !stage.input; });
}

}  // namespace penstock::adapt
