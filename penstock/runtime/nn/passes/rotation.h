// Rotary positions of rows of heads, forth and back.
//
// The plain version is in nn/rotary.cpp, with the same bits.
#pragma once
#include "penstock/runtime/nn/passes/kernels.h"
#include "penstock/runtime/nn/passes/vectors.h"

namespace penstock::nn::passes {
namespace {

inline void rotate(const Rotation& of) {
  const std::int64_t half = of.turned / 2;
  const Vector sign(of.is_back ? -1.0F : 1.0F);
  for (std::int64_t row = 0; row < of.rows; ++row) {
    const std::int64_t position =
        of.positions == nullptr ? (of.first_row + row) % of.sequence : of.positions[row];
    const float* const cosines = of.cosines + position * of.turned;
    const float* const sines = of.sines + position * of.turned;
    for (std::int64_t head = 0; head < of.heads; ++head) {
      const float* const x = of.x + row * of.row_stride + head * of.head_dim;
      float* const output = of.output + (row * of.heads + head) * of.head_dim;
      by_vectors(half, [&](auto i, auto count) {
        const Vector cosine = load(cosines + i, count), sine = load(sines + i, count) * sign;
        const Vector first = load(x + i, count);
        const Vector second = load(x + half + i, count);
        store(first * cosine - second * sine, output + i, count);
        store(second * cosine + first * sine, output + half + i, count);
      });
      if (output == x) continue;
      const float* const others = x + of.turned;
      by_vectors(of.head_dim - of.turned, [&](auto i, auto count) {
        store(load(others + i, count), output + of.turned + i, count);
      });
    }
  }
}

}  // namespace
}  // namespace penstock::nn::passes
