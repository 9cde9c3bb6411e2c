#include "penstock/runtime/nn/capped_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <limits>

namespace penstock::nn {

at::Tensor capped_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const std::optional<at::Tensor>& sees,
                            const ScoreOptions& options) {
  const at::Tensor scores = at::matmul(queries, keys.transpose(-2, -1));
  at::Tensor capped = (scores * (options.scale / options.cap)).tanh() * options.cap;
  if (sees) {
    constexpr float kUnseen = -std::numeric_limits<float>::infinity();
    capped = capped.masked_fill(sees->logical_not(), kUnseen);
  }
  const at::Tensor shares = at::softmax(capped, -1, at::kFloat).to(values.scalar_type());
  return at::matmul(shares, values);
}

at::Tensor sees_no_later_ones(const at::Tensor& queries, const at::Tensor& keys) {
  const std::int64_t rows = queries.size(-2), columns = keys.size(-2);
  return at::ones({rows, columns}, at::dtype(at::kBool).device(queries.device()))
      .tril(columns - rows);
}

}  // namespace penstock::nn
