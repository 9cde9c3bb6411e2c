#include "penstock/runtime/update/gradient_scale.h"

#include <algorithm>
#include <cmath>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::update {
namespace {

constexpr double kFactor = 2.0;

}  // namespace

GradientScale::GradientScale(const config::Fp16Config& options)
    : options_(options), state_{.lives = options.hysteresis} {
  if (!options.enabled) return;
  state_.value = is_dynamic() ? std::ldexp(1.0, static_cast<int>(options.initial_scale_power))
                              : options.loss_scale;
}

void GradientScale::shrink() {
  if (state_.value <= options_.min_loss_scale) {
    throw NumericsError(str("the gradients overflow at the smallest gradient scale, ",
                            shortest(state_.value), ", so no scale is left to try"),
                        {"lower fp16.min_loss_scale or optimizer.params.lr, or use bf16"});
  }
  state_.value = std::max(state_.value / kFactor, options_.min_loss_scale);
}

void GradientScale::update(bool overflowed) {
  if (!is_dynamic()) return;
  if (overflowed) {
    state_.clean_steps = 0;
    state_.lives > 1 ? void(--state_.lives) : shrink();
    return;
  }
  const std::int64_t clean_before = state_.clean_steps++;
  const bool grows = clean_before > 0 && clean_before % options_.loss_scale_window == 0;
  if (grows) state_.value *= kFactor;
  if (grows || options_.consecutive_hysteresis) state_.lives = options_.hysteresis;
}

std::optional<GradientScale::State> GradientScale::state() const {
  return is_dynamic() ? std::optional(state_) : std::nullopt;
}

void GradientScale::go_on_from(const State& state) {
  if (!is_dynamic()) return;
  if (!std::isfinite(state.value) || state.value <= 0 || state.lives < 1 || state.clean_steps < 0) {
    throw Error(str("no gradient scale has the value ", shortest(state.value), ", ", state.lives,
                    " overflows left and ", state.clean_steps, " clean steps"));
  }
  state_ = state;
  state_.lives = std::min(state.lives, options_.hysteresis);
}

}  // namespace penstock::update
