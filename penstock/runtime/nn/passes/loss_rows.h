// The cross-entropy of rows of logits, and its gradient.
//
// The plain version is in nn/token_loss.cpp.
#pragma once
#include <cmath>
#include <limits>

#include "penstock/runtime/nn/passes/kernels.h"
#include "penstock/runtime/nn/passes/vectors.h"

namespace penstock::nn::passes {
namespace {

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

inline void loss(const LossRows& rows) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const float* const logits = rows.logits + row * rows.width;
    const float largest = largest_of(logits, rows.width);
    const Vector behind(largest);
    const float sum = total(rows.width, [&](const Vector& so_far, auto i, auto count) {
      return so_far + (load_logits(logits + i, count) - behind).exp();
    });
    const float logarithm = std::log(sum);
    rows.log_sums[row] = largest + logarithm;
    rows.of_targets[row] = logits[rows.targets[row]] - largest - logarithm;
  }
}

inline void loss_gradient(const LossGradientRows& rows) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const float* const logits = rows.logits + row * rows.width;
    float* const output = rows.output + row * rows.width;
    const Vector log_sum(rows.log_sums[row]), factor(rows.factors[row]);
    const std::int64_t target = rows.targets[row];
    const Vector of_target = ((Vector(logits[target]) - log_sum).exp() - Vector(1.0F)) * factor;
    by_vectors(rows.width, [&](auto i, auto count) {
      store((load(logits + i, count) - log_sum).exp() * factor, output + i, count);
    });
    store(of_target, output + target, 1);
  }
}

}  // namespace
}  // namespace penstock::nn::passes
