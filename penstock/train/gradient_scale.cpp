#include "penstock/train/gradient_scale.h"

#include <algorithm>
#include <cmath>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::train {
namespace {

constexpr double kFactor = 2.0;

}  // namespace

GradientScale::GradientScale(const config::Fp16Config& options)
    : options_(options), lives_(options.hysteresis) {
  if (!options.enabled) return;
  value_ = is_dynamic() ? std::ldexp(1.0, static_cast<int>(options.initial_scale_power))
                        : options.loss_scale;
}

void GradientScale::shrink() {
  if (value_ <= options_.min_loss_scale) {
    throw NumericsError(str("the gradients overflow at the smallest gradient scale, ",
                            shortest(value_), ", so no scale is left to try"),
                        {"lower fp16.min_loss_scale or optimizer.params.lr, or use bf16"});
  }
  value_ = std::max(value_ / kFactor, options_.min_loss_scale);
}

void GradientScale::update(bool overflowed) {
  if (!is_dynamic()) return;
  const std::int64_t step = steps_++;
  if (overflowed) {
    lives_ > 1 ? void(--lives_) : shrink();
    last_overflow_ = step;
    return;
  }
  const std::int64_t good_before = step - last_overflow_ - 1;
  const bool grows = good_before > 0 && good_before % options_.loss_scale_window == 0;
  if (grows) value_ *= kFactor;
  if (grows || options_.consecutive_hysteresis) lives_ = options_.hysteresis;
}

}  // namespace penstock::train
