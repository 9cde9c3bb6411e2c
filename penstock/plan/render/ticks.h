// The places of an axis's ticks, and what is written at them.
//
// The charts of render/ use it.  Steps are 1, 2 or 5 times a power of ten.  Knows values, no
// pixels.
#pragma once
#include <string>
#include <vector>

namespace penstock::render {

struct Ticks {
  double step = 1.0;
  std::vector<double> values;  // Multiples of `step` in the range, rising.
};

struct TickRange {
  double low = 0.0;
  double high = 1.0;
  int count_max = 10;     // No more steps than these fit into the range.
  double step_min = 0.0;  // 1 for an axis that counts.
};

// REQUIRES: low < high, both finite, with a finite difference; count_max >= 1.
Ticks ticks(const TickRange& range);

// The label, with as many decimals as the step has: tick_label(0.5, 0.25) == "0.50".
std::string tick_label(double value, double step);

}  // namespace penstock::render
