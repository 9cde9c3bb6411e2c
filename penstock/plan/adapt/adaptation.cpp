#include "penstock/plan/adapt/adaptation.h"

#include <utility>

#include "penstock/core/check.h"

namespace penstock::adapt {
namespace {

// A step that is longer by no more than this is not slower: clocks and machines vary.
constexpr double kNotSlower = 0.01;

// Compares the forwards of stages alone, not their backwards.
bool forwards_differ(const WindowCosts& before, const WindowCosts& now, double share) {
  for (std::size_t s = 0; s < now.stages.size(); ++s) {
    if (is_change(*before.stages[s].forward, *now.stages[s].forward, share)) return true;
  }
  return false;
}

}  // namespace

Adaptation::Adaptation(std::size_t stages, const Settings& settings)
    : settings_(settings), known_(stages), plans_with_reference_(settings.adapts == Adapts::Yes) {}

Outcome Adaptation::after(const WindowCosts& window) {
  known_.learn(window);
  if (pending_) return of_new_program(window);
  if (!reference_) return of_reference(window);
  const CostChange change = change_between(reference_->costs, window, settings_.change);
  CostChange both = lasting(std::exchange(reference_->seen, change), change);
  if (!both.any()) return {};
  return of_change(window, std::move(both));
}

Outcome Adaptation::of_reference(const WindowCosts& window) {
  reference_ = Reference{window};
  return {.is_due = std::exchange(plans_with_reference_, false)};
}

Outcome Adaptation::of_change(const WindowCosts& window, CostChange change) {
  Outcome outcome{.told = Told{reference_->costs, std::move(change)}, .is_due = true};
  reference_ = Reference{window};
  return outcome;
}

Outcome Adaptation::of_new_program(const WindowCosts& window) {
  const Pending pending = *std::exchange(pending_, std::nullopt);
  CostChange change = change_between(pending.before, window, settings_.change);
  if (change.any() && forwards_differ(pending.before, window, settings_.change)) {
    reference_ = Reference{pending.before};
    return of_change(window, std::move(change));
  }
  reference_ = Reference{window};
  Judgement judged{.before = pending.before.step().median,
                   .now = window.step().median,
                   .simulated_gain = pending.simulated_gain};
  judged.stays = judged.now <= judged.before * (1.0 + kNotSlower);
  return {.judged = judged};
}

void Adaptation::changed(double simulated_gain) {
  PENSTOCK_CHECK(reference_, "no window was measured");
  pending_ = Pending{reference_->costs, simulated_gain};
}

void Adaptation::went_back() {
  pending_.reset();
  reference_.reset();
}

}  // namespace penstock::adapt
