// Attention of floats in the host's memory, by the passes of passes/attention.h.
//
// The only place that chooses, by types, sizes and whose products the host has: ranks on equal
// machines choose alike.  A head has the same bits whatever heads are with it.  Keeps inputs and a
// number for each query; no scores, and no mask of documents or windows.  Devices, short types and
// scores with a cap have torch's operators.
// Shapes: queries [samples, heads, tokens, width], keys and values [samples, kv_heads, tokens,
// width], of which as many queries share each.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace penstock::nn {

struct HostAttention {
  double scale = 1.0;
  std::optional<std::int64_t> window = {};  // Tokens that a query sees, itself included.
  // The first token that each sees, not before that of the token before, [samples, tokens].
  // Absent: all see all up to their own.
  std::optional<at::Tensor> starts = {};
};

// False with few tokens, or more keys than queries.
bool has_host_attention(const at::Tensor& queries, const at::Tensor& keys,
                        const at::Tensor& values);

// The values of all keys that a query sees, mixed: [samples, tokens, heads x width].
// REQUIRES: has_host_attention(), but for the number of tokens.
at::Tensor host_attention(const at::Tensor& queries, const at::Tensor& keys,
                          const at::Tensor& values, const HostAttention& options);

}  // namespace penstock::nn
