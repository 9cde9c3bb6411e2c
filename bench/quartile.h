// Times of a benchmark that runs in one process, and the figure that is compared of them.
//
// A shared machine only adds time, so it is the lower quartile.  Units: microseconds.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace penstock::bench {

inline double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// REQUIRES: there is a value.
inline double lower_quartile(std::vector<double> values) {
  const auto place = values.begin() + std::ssize(values) / 4;
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

}  // namespace penstock::bench
