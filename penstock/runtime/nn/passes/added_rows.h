// Rows added into a table, those of one number in their order before they are added.
//
// The plain version is torch's gradient of an embedding, which writes the table anew.
#pragma once
#include "penstock/runtime/nn/passes/kernels.h"
#include "penstock/runtime/nn/passes/vectors.h"

namespace penstock::nn::passes {
namespace {

inline void add_rows(const AddedRows& all) {
  for (std::int64_t first = 0, end = 0; first < all.rows; first = end) {
    const std::int64_t number = all.numbers[all.order[first]];
    while (end < all.rows && all.numbers[all.order[end]] == number) ++end;
    float* const table = all.table + number * all.stride;
    by_vectors(all.width, [&](auto i, auto count) {
      Vector sum(0.0F);
      for (std::int64_t place = first; place < end; ++place) {
        sum = sum + load(all.x + all.order[place] * all.stride + i, count);
      }
      store(load(table + i, count) + sum, table + i, count);
    });
  }
}

}  // namespace
}  // namespace penstock::nn::passes
