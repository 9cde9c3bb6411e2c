// Numbers that look random, and are the same on every machine for the same seed.
//
// The search draws its moves with it.  Not for secrets.
// Source: splitmix64, as core/text.h has it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "penstock/core/text.h"

namespace penstock::search {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}

  std::uint64_t next() { return mix(state_++); }
  // A number in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double between(double low, double high) { return low + (high - low) * unit(); }
  // A number in [0, count).
  // REQUIRES: count > 0.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(next() % count); }
  bool chance(double share) { return unit() < share; }

 private:
  std::uint64_t state_;
};

}  // namespace penstock::search
