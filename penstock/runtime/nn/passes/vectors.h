// ATen's vectors of floats, for the passes of this folder.
//
// The files of passes include it.  They are compiled once for each kind of processor, so all that
// they define is in an anonymous namespace: what a linker might share between the kinds would have
// instructions that some processor has not.
#pragma once
#include <ATen/cpu/vec/vec.h>

#include <cstdint>
#include <limits>

namespace penstock::nn::passes {
namespace {

using Vector = at::vec::Vectorized<float>;
constexpr std::int64_t kLanes = Vector::size();

// `count` elements, and zeros behind them.
inline Vector load(const float* from, std::int64_t count) {
  return count == kLanes ? Vector::loadu(from) : Vector::loadu(from, count);
}
inline void store(const Vector& vector, float* to, std::int64_t count) {
  if (count == kLanes) {
    vector.store(to);
  } else {
    vector.store(to, static_cast<int>(count));
  }
}

// action(first, count) for all elements.
template <class Action>
inline void by_vectors(std::int64_t elements, const Action& action) {
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) action(i, kLanes);
  if (i < elements) action(i, elements - i);
}

// Folds one lane into another until one is left.
template <class Fold>
inline float folded(const Vector& vector, const Fold& fold) {
  alignas(64) float lanes[kLanes];
  vector.store(lanes);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) lanes[i] = fold(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

// add(sum, first, count) adds terms to a vector of sums, of which there are four: additions do not
// wait for each other.
template <class Add>
inline float total(std::int64_t elements, const Add& add) {
  Vector sums[4] = {Vector(0.0F), Vector(0.0F), Vector(0.0F), Vector(0.0F)};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= elements; i += 4 * kLanes) {
    for (std::int64_t j = 0; j < 4; ++j) sums[j] = add(sums[j], i + j * kLanes, kLanes);
  }
  for (; i + kLanes <= elements; i += kLanes) sums[0] = add(sums[0], i, kLanes);
  if (i < elements) sums[1] = add(sums[1], i, elements - i);
  return folded((sums[0] + sums[1]) + (sums[2] + sums[3]), [](float a, float b) { return a + b; });
}

// `count` logits, and behind them what has no exponential.
inline Vector load_logits(const float* from, std::int64_t count) {
  if (count == kLanes) return Vector::loadu(from);
  const Vector nothing(-std::numeric_limits<float>::infinity());
  return Vector::set(nothing, Vector::loadu(from, count), count);
}

inline float largest_of(const float* logits, std::int64_t width) {
  const Vector nothing(-std::numeric_limits<float>::infinity());
  Vector largest[2] = {nothing, nothing};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    largest[0] = at::vec::maximum(largest[0], Vector::loadu(logits + i));
    largest[1] = at::vec::maximum(largest[1], Vector::loadu(logits + i + kLanes));
  }
  by_vectors(width - i, [&](auto j, auto count) {
    largest[0] = at::vec::maximum(largest[0], load_logits(logits + i + j, count));
  });
  return folded(at::vec::maximum(largest[0], largest[1]),
                [](float a, float b) { return a > b || a != a ? a : b; });
}

}  // namespace
}  // namespace penstock::nn::passes
