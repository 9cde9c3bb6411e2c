// The order of numbered things, shuffled: a permutation of [0, size) that is computed, not stored.
//
// TokenSamples draw by one in each epoch.  It takes no memory, whatever the size, and any element
// of it costs the same; it is a function of (size, key) alone, on every machine.  Knows no samples.
// Invariants: at() takes every value of [0, size) once.
// Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002): a generalised
// Feistel network over a x b >= size numbers, with cycle walking.  Ours has a >= sqrt(size), so
// that fewer than a numbers are walked over, and mix() as round function: it shuffles, and hides
// nothing.
#pragma once
#include <cstdint>

namespace penstock::data {

class Permutation {
 public:
  // REQUIRES: size in [1, 2^62].
  Permutation(std::int64_t size, std::uint64_t key);

  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  // What stands at `place`.  REQUIRES: place in [0, size()).
  std::int64_t at(std::int64_t place) const;

 private:
  std::uint64_t network(std::uint64_t number) const;

  std::uint64_t size_;
  std::uint64_t low_;   // The network's numbers are low + low_ x high, ...
  std::uint64_t high_;  // ... with low in [0, low_) and high in [0, high_).
  std::uint64_t key_;
};

}  // namespace penstock::data
