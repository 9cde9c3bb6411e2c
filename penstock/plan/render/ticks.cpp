#include "penstock/plan/render/ticks.h"

#include <algorithm>
#include <cmath>

#include "penstock/core/check.h"
#include "penstock/plan/render/number.h"

namespace penstock::render {
namespace {

constexpr int kDecimalsMax = 6;
constexpr double kLargestPlain = 1e7;  // Labels of this value and more have an exponent.

// Absorbs the rounding of quotients like 0.3 / 0.1.
constexpr double kSlack = 1e-9;

double nice_step(double at_least) {
  const double magnitude = std::pow(10.0, std::floor(std::log10(at_least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * magnitude >= at_least * (1.0 - kSlack)) return factor * magnitude;
  }
  return 10.0 * magnitude;
}

}  // namespace

Ticks ticks(const TickRange& range) {
  const double span = range.high - range.low;
  PENSTOCK_CHECK(span > 0 && std::isfinite(span), range.low, " to ", range.high);
  PENSTOCK_CHECK(range.count_max >= 1, range.count_max);
  Ticks result{.step = std::max(nice_step(span / range.count_max), range.step_min)};
  const double first = std::ceil(range.low / result.step - kSlack);
  const double last = std::floor(range.high / result.step + kSlack);
  // Counted, as adding the step would not move a value that is large against it.
  const int count = static_cast<int>(std::min(last - first, 1.0 * range.count_max));
  for (int i = 0; i <= count; ++i) result.values.push_back((first + i) * result.step);
  return result;
}

std::string tick_label(double value, double step) {
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + kSlack)));
  const bool is_plain = decimals <= kDecimalsMax && std::abs(value) < kLargestPlain;
  return is_plain ? fixed(value, decimals) : significant(value);
}

}  // namespace penstock::render
