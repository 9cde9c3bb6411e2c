// The cross-entropy of rows of logits, and its gradient.
//
// The plain version is in nn/token_loss.cpp.
#pragma once
#include <cmath>

#include "penstock/runtime/nn/passes/kernels.h"
#include "penstock/runtime/nn/passes/vectors.h"

namespace penstock::nn::passes {
namespace {

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
