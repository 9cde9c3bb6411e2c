// Attention by blocks of queries: what they see is small enough to stay in a cache.
//
// Products are the caller's.  The backward computes a block's shares again, from the logarithms of
// their sums.  The plain version is torch's scaled_dot_product_attention().
// Source: Dao et al., FlashAttention (2022); Rabe and Staats, Self-attention Does Not Need O(n^2)
// Memory (2021).
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "penstock/runtime/nn/passes/kernels.h"
#include "penstock/runtime/nn/passes/vectors.h"

namespace penstock::nn::passes {
namespace {

// Queries of some tokens, of all heads of a group, one head's rows behind another's.
class QueryBlock {
 public:
  QueryBlock(const Attention& of, std::int64_t first)
      : of_(of),
        first_(first),
        tokens_(std::min(kQueriesAtOnce, of.tokens - first)),
        first_key_(first_seen(first)),
        keys_(first + tokens_ - first_key_) {}

  std::int64_t rows() const { return of_.group * tokens_; }
  std::int64_t keys() const { return keys_; }

  // action(row, head, token)
  template <class Action>
  void for_rows(const Action& action) const {
    for (std::int64_t head = 0; head < of_.group; ++head) {
      for (std::int64_t i = 0; i < tokens_; ++i) action(head * tokens_ + i, head, first_ + i);
    }
  }
  // The keys that a token sees, [first, second) of the block's.
  std::pair<std::int64_t, std::int64_t> seen(std::int64_t token) const {
    return {first_seen(token) - first_key_, token + 1 - first_key_};
  }

  void multiply(const Matrix& a, const Matrix& b, float* to, std::int64_t stride,
                std::int64_t inner, std::int64_t columns) const {
    of_.multiply({.a = a,
                  .b = b,
                  .sum = to,
                  .stride = stride,
                  .rows = rows(),
                  .inner = inner,
                  .columns = columns});
  }
  // Writes x [rows, width] x the block's keys, or values, transposed.
  void multiply_by_keys(const float* x, const Heads& keys, float* to) const {
    multiply({x, of_.width}, of_keys(keys, /*is_transposed=*/true), to, keys_, of_.width, keys_);
  }
  // Writes x [rows, keys] x the block's keys, or values.
  void mix(const float* x, const Heads& values, float* to) const {
    multiply({x, keys_}, of_keys(values), to, of_.width, keys_, of_.width);
  }
  // sums of the block's keys += x transposed x rows.
  void add_to_keys(const float* x, const float* rows_of_width, const Heads& sums) const {
    of_.multiply({.a = {x, keys_, /*is_transposed=*/true},
                  .b = {rows_of_width, of_.width},
                  .sum = sums.first + first_key_ * sums.token_stride,
                  .stride = sums.token_stride,
                  .rows = keys_,
                  .inner = rows(),
                  .columns = of_.width,
                  .adds = true});
  }

 private:
  std::int64_t first_seen(std::int64_t token) const {
    const std::int64_t of_window = std::max<std::int64_t>(0, token - of_.window + 1);
    return of_.starts == nullptr ? of_window : std::max(of_window, of_.starts[token]);
  }
  Matrix of_keys(const Heads& keys, bool is_transposed = false) const {
    return {keys.first + first_key_ * keys.token_stride, keys.token_stride, is_transposed};
  }

  const Attention& of_;
  std::int64_t first_, tokens_, first_key_, keys_;
};

inline float* row_of(const Heads& heads, std::int64_t head, std::int64_t token) {
  return heads.first + token * heads.token_stride + head * heads.head_stride;
}

inline void copy_scaled(const float* from, float scale, float* to, std::int64_t width) {
  const Vector factor(scale);
  by_vectors(width,
             [&](auto i, auto count) { store(load(from + i, count) * factor, to + i, count); });
}

inline void forget_unseen(float* scores, std::pair<std::int64_t, std::int64_t> seen,
                          std::int64_t keys) {
  std::fill(scores, scores + seen.first, 0.0F);
  std::fill(scores + seen.second, scores + keys, 0.0F);
}

// Turns scores into exponentials behind the largest one.  Their sum, and its logarithm with that.
inline std::pair<float, float> exponentials(float* scores, std::int64_t keys) {
  const float largest = largest_of(scores, keys);
  const Vector behind(largest);
  const float sum = total(keys, [&](const Vector& so_far, auto i, auto count) {
    const Vector each = (load_logits(scores + i, count) - behind).exp();
    store(each, scores + i, count);
    return so_far + each;
  });
  return {sum, largest + std::log(sum)};
}

inline void attend(const Attention& all) {
  const std::int64_t rows_max = all.group * kQueriesAtOnce;
  float* const queries = all.scratch;
  float* const mixed = queries + rows_max * all.width;
  float* const sums = mixed + rows_max * all.width;
  float* const scores = sums + rows_max;
  for (std::int64_t first = 0; first < all.tokens; first += kQueriesAtOnce) {
    const QueryBlock block(all, first);
    block.for_rows([&](auto row, auto head, auto token) {
      copy_scaled(row_of(all.queries, head, token), all.scale, queries + row * all.width,
                  all.width);
    });
    block.multiply_by_keys(queries, all.keys, scores);
    block.for_rows([&](auto row, auto head, auto token) {
      float* const its = scores + row * block.keys();
      const auto seen = block.seen(token);
      forget_unseen(its, seen, block.keys());
      const auto [sum, logarithm] = exponentials(its + seen.first, seen.second - seen.first);
      sums[row] = sum;
      all.log_sums[head * all.tokens + token] = logarithm;
    });
    block.mix(scores, all.values, mixed);
    block.for_rows([&](auto row, auto head, auto token) {
      copy_scaled(mixed + row * all.width, 1 / sums[row], row_of(all.output, head, token),
                  all.width);
    });
  }
}

inline void attention_gradient(const AttentionGradient& all) {
  const Attention& of = all.of;
  const std::int64_t width = of.width, rows_max = of.group * kQueriesAtOnce;
  float* const queries = of.scratch;
  float* const gradients = queries + rows_max * width;
  float* const of_queries = gradients + rows_max * width;
  float* const products = of_queries + rows_max * width;  // A row of output times its gradient.
  float* const shares = products + rows_max;
  float* const of_shares = shares + rows_max * of.tokens;
  for (std::int64_t first = 0; first < of.tokens; first += kQueriesAtOnce) {
    const QueryBlock block(of, first);
    block.for_rows([&](auto row, auto head, auto token) {
      const float* const gradient = row_of(all.gradient, head, token);
      const float* const output = row_of(of.output, head, token);
      copy_scaled(row_of(of.queries, head, token), of.scale, queries + row * width, width);
      copy_scaled(gradient, 1, gradients + row * width, width);
      products[row] = total(width, [&](const Vector& so_far, auto i, auto count) {
        return so_far + load(gradient + i, count) * load(output + i, count);
      });
    });
    block.multiply_by_keys(queries, of.keys, shares);
    block.multiply_by_keys(gradients, of.values, of_shares);
    block.for_rows([&](auto row, auto head, auto token) {
      float* const its = shares + row * block.keys();
      float* const of_its = of_shares + row * block.keys();
      const auto seen = block.seen(token);
      forget_unseen(its, seen, block.keys());
      forget_unseen(of_its, seen, block.keys());
      const Vector log_sum(of.log_sums[head * of.tokens + token]), product(products[row]);
      by_vectors(seen.second - seen.first, [&](auto i, auto count) {
        float* const share = its + seen.first + i;
        float* const of_share = of_its + seen.first + i;
        const Vector value = (load(share, count) - log_sum).exp();
        store(value, share, count);
        store(value * (load(of_share, count) - product), of_share, count);
      });
    });
    block.add_to_keys(shares, gradients, all.of_values);
    block.add_to_keys(of_shares, queries, all.of_keys);
    block.mix(of_shares, of.keys, of_queries);
    block.for_rows([&](auto row, auto head, auto token) {
      copy_scaled(of_queries + row * width, of.scale, row_of(all.of_queries, head, token), width);
    });
  }
}

}  // namespace
}  // namespace penstock::nn::passes
