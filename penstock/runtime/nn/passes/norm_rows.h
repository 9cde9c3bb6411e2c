// The root-mean-square norm of rows, with what is added before it, and its gradients.
//
// The plain version is in nn/rms_norm.cpp.  Products are rounded as there; sums over a row have
// another order.  Sums over rows are added in groups, and these in order.
#pragma once
#include <cmath>

#include "penstock/runtime/nn/passes/kernels.h"
#include "penstock/runtime/nn/passes/vectors.h"

namespace penstock::nn::passes {
namespace {

constexpr std::int64_t kRowsOfGroup = 16;

inline float scale_of(const NormRows& rows, const float* x, const float* added, float* sum) {
  const float squares = total(rows.width, [&](const Vector& so_far, auto i, auto count) {
    Vector each = load(x + i, count);
    if (added != nullptr) {
      each = each + load(added + i, count);
      store(each, sum + i, count);
    }
    return at::vec::fmadd(each, each, so_far);
  });
  return 1.0F / std::sqrt(squares / static_cast<float>(rows.width) + rows.epsilon);
}

inline void norm(const NormRows& rows) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int64_t begin = row * rows.width;
    const float* const x = rows.x + begin;
    const float* const added = rows.added == nullptr ? nullptr : rows.added + begin;
    float* const sum = rows.added == nullptr ? nullptr : rows.sum + begin;
    if (!rows.has_scales) rows.scales[row] = scale_of(rows, x, added, sum);
    const float* const normed = sum == nullptr ? x : sum;
    const Vector scale(rows.scales[row]);
    by_vectors(rows.width, [&](auto i, auto count) {
      const Vector values = load(normed + i, count) * scale;
      store(load(rows.weight + i, count) * values, rows.output + begin + i, count);
    });
  }
}

// A group's sum becomes part of the whole.
inline void add_group(const NormGradientRows& rows, bool is_first) {
  by_vectors(rows.width, [&](auto i, auto count) {
    const Vector group = load(rows.group + i, count);
    store(is_first ? group : load(rows.of_weight + i, count) + group, rows.of_weight + i, count);
  });
}

inline void norm_gradient(const NormGradientRows& rows) {
  if (rows.rows == 0 && rows.of_weight != nullptr) {
    by_vectors(rows.width,
               [&](auto i, auto count) { store(Vector(0.0F), rows.of_weight + i, count); });
  }
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int64_t begin = row * rows.stride;
    const float *const gradient = rows.gradient + begin, *const x = rows.x + begin;
    const Vector scale(rows.scales[row]);
    Vector along(0.0F);
    if (rows.of_x != nullptr) {
      const float sum = total(rows.width, [&](const Vector& so_far, auto i, auto count) {
        const Vector of_values = load(gradient + i, count) * load(rows.weight + i, count);
        return at::vec::fmadd(of_values, load(x + i, count) * scale, so_far);
      });
      along = Vector(sum / static_cast<float>(rows.width));
    }
    const bool begins = row % kRowsOfGroup == 0;
    const bool ends = row % kRowsOfGroup == kRowsOfGroup - 1 || row + 1 == rows.rows;
    by_vectors(rows.width, [&](auto i, auto count) {
      const Vector of_output = load(gradient + i, count), values = load(x + i, count) * scale;
      if (rows.of_weight != nullptr) {
        const Vector group = begins ? Vector(0.0F) : load(rows.group + i, count);
        store(group + of_output * values, rows.group + i, count);
      }
      if (rows.of_rows != nullptr) store(of_output * values, rows.of_rows + begin + i, count);
      if (rows.of_x == nullptr) return;
      Vector of_x = (of_output * load(rows.weight + i, count) - values * along) * scale;
      if (rows.of_sum != nullptr) of_x = load(rows.of_sum + begin + i, count) + of_x;
      store(of_x, rows.of_x + begin + i, count);
    });
    if (rows.of_weight != nullptr && ends) add_group(rows, row < kRowsOfGroup);
  }
}

}  // namespace
}  // namespace penstock::nn::passes
