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

// Queries of some tokens, and the keys that one of them sees.
class QueryBlock {
 public:
  QueryBlock(const Attention& of, std::int64_t first)
      : of_(of),
        first_(first),
        rows_(std::min(kQueriesAtOnce, of.end - first)),
        first_key_(first_seen(first)),
        keys_(first + rows_ - first_key_) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t keys() const { return keys_; }
  std::int64_t token(std::int64_t row) const { return first_ + row; }
  // The keys that a row sees, [first, second) of the block's.
  std::pair<std::int64_t, std::int64_t> seen(std::int64_t row) const {
    return {first_seen(token(row)) - first_key_, token(row) + 1 - first_key_};
  }

  // Writes x [rows, width] x the block's keys, or values, transposed.
  void multiply_by_keys(const float* x, const Head& keys, float* to) const {
    of_.multiply({.a = {x, of_.width},
                  .b = {of_keys(keys), keys.stride, /*is_transposed=*/true},
                  .sum = to,
                  .stride = keys_,
                  .rows = rows_,
                  .inner = of_.width,
                  .columns = keys_});
  }
  // Writes x [rows, keys] x the block's keys, or values.
  void mix(const float* x, const Head& values, float* to) const {
    of_.multiply({.a = {x, keys_},
                  .b = {of_keys(values), values.stride},
                  .sum = to,
                  .stride = of_.width,
                  .rows = rows_,
                  .inner = keys_,
                  .columns = of_.width});
  }
  // Adds x [rows, keys] transposed x y [rows, width] to sums of the block's keys.
  void add_to_keys(const float* x, const float* y, const Head& sums) const {
    of_.multiply({.a = {x, keys_, /*is_transposed=*/true},
                  .b = {y, of_.width},
                  .sum = of_keys(sums),
                  .stride = sums.stride,
                  .rows = keys_,
                  .inner = rows_,
                  .columns = of_.width,
                  .adds = true});
  }

 private:
  std::int64_t first_seen(std::int64_t token) const {
    const std::int64_t of_window = std::max<std::int64_t>(0, token - of_.window + 1);
    return of_.starts == nullptr ? of_window : std::max(of_window, of_.starts[token]);
  }
  float* of_keys(const Head& keys) const { return keys.first + first_key_ * keys.stride; }

  const Attention& of_;
  std::int64_t first_, rows_, first_key_, keys_;
};

template <class Action>
inline void for_blocks(const Attention& of, const Action& action) {
  for (std::int64_t first = of.first; first < of.end; first += kQueriesAtOnce) {
    action(QueryBlock(of, first));
  }
}

inline float* row_of(const Head& head, std::int64_t token) {
  return head.first + token * head.stride;
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
  const std::int64_t width = all.width;
  float* const queries = all.scratch;
  float* const mixed = queries + kQueriesAtOnce * width;
  float* const sums = mixed + kQueriesAtOnce * width;
  float* const scores = sums + kQueriesAtOnce;
  for_blocks(all, [&](const QueryBlock& block) {
    for (std::int64_t i = 0; i < block.rows(); ++i) {
      copy_scaled(row_of(all.queries, block.token(i)), all.scale, queries + i * width, width);
    }
    block.multiply_by_keys(queries, all.keys, scores);
    for (std::int64_t i = 0; i < block.rows(); ++i) {
      float* const its = scores + i * block.keys();
      const auto seen = block.seen(i);
      forget_unseen(its, seen, block.keys());
      const auto [sum, logarithm] = exponentials(its + seen.first, seen.second - seen.first);
      sums[i] = sum;
      all.log_sums[block.token(i)] = logarithm;
    }
    block.mix(scores, all.values, mixed);
    for (std::int64_t i = 0; i < block.rows(); ++i) {
      copy_scaled(mixed + i * width, 1 / sums[i], row_of(all.output, block.token(i)), width);
    }
  });
}

// Turns scores into shares, and the gradients of shares into those of scores.  The logarithm is
// rounded: shares are made to add up to 1, or what one key dominates would lose its digits.
inline void turn_back(float* scores, float* gradients, float log_sum, std::int64_t keys) {
  const Vector behind(log_sum);
  Vector shares(0.0F);
  const float of_shares = total(keys, [&](const Vector& so_far, auto i, auto count) {
    const Vector share = (load_logits(scores + i, count) - behind).exp();
    store(share, scores + i, count);
    shares = shares + share;
    return so_far + share * load(gradients + i, count);
  });
  const float sum = folded(shares, [](float a, float b) { return a + b; });
  const Vector factor(1 / sum), mean(of_shares / sum);
  by_vectors(keys, [&](auto i, auto count) {
    const Vector share = load(scores + i, count) * factor;
    store(share, scores + i, count);
    store(share * (load(gradients + i, count) - mean), gradients + i, count);
  });
}

inline void attention_gradient(const AttentionGradient& all) {
  const Attention& of = all.of;
  const std::int64_t width = of.width;
  float* const queries = of.scratch;
  float* const gradients = queries + kQueriesAtOnce * width;
  float* const of_queries = gradients + kQueriesAtOnce * width;
  float* const shares = of_queries + kQueriesAtOnce * width;
  float* const of_shares = shares + kQueriesAtOnce * of.end;
  for_blocks(of, [&](const QueryBlock& block) {
    for (std::int64_t i = 0; i < block.rows(); ++i) {
      copy_scaled(row_of(of.queries, block.token(i)), of.scale, queries + i * width, width);
      copy_scaled(row_of(all.gradient, block.token(i)), 1, gradients + i * width, width);
    }
    block.multiply_by_keys(queries, of.keys, shares);
    block.multiply_by_keys(gradients, of.values, of_shares);
    for (std::int64_t i = 0; i < block.rows(); ++i) {
      float* const its = shares + i * block.keys();
      float* const of_its = of_shares + i * block.keys();
      const auto seen = block.seen(i);
      forget_unseen(its, seen, block.keys());
      forget_unseen(of_its, seen, block.keys());
      turn_back(its + seen.first, of_its + seen.first, of.log_sums[block.token(i)],
                seen.second - seen.first);
    }
    block.add_to_keys(shares, gradients, all.of_values);
    block.add_to_keys(of_shares, queries, all.of_keys);
    block.mix(of_shares, of.keys, of_queries);
    for (std::int64_t i = 0; i < block.rows(); ++i) {
      copy_scaled(of_queries + i * width, of.scale, row_of(all.of_queries, block.token(i)), width);
    }
  });
}

}  // namespace
}  // namespace penstock::nn::passes
