// Attention whose scores are bounded before they compete: cap x tanh(score / cap).
//
// The decoder's where DecoderOptions::score_cap says so.  torch's fused kernels have no such bound,
// so all scores of a layer are there at once, twice, until its backward.
// Source: Gemma Team, Gemma 2 (2024), section 2.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace penstock::nn {

struct ScoreOptions {
  double scale = 1.0;  // Products of queries and keys are multiplied by it.
  double cap = 50.0;
};

// The values of all keys that a query sees, mixed.  Scores compete in float.
// Shapes: [samples, heads, tokens, head_dim]; `sees`: true where a query sees a key, and broadcast
// to [samples, heads, queries, keys]; absent: every query sees every key.
at::Tensor capped_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const std::optional<at::Tensor>& sees,
                            const ScoreOptions& options);

// [queries, keys]: which keys each sees that are not behind it, where the last query has the last
// key.
at::Tensor sees_no_later_ones(const at::Tensor& queries, const at::Tensor& keys);

}  // namespace penstock::nn
