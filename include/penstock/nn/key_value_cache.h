// The keys and values of the tokens that an attention has seen, so that later ones see them.
//
// A decoder's layer that continues (decoder.h) fills it; generating makes one for each layer.
// Memory doubles when it is full, so appending a token copies those before it rarely.
// Shapes: [samples, heads, tokens, head_dim], heads of keys and values.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace penstock::nn {

class KeyValueCache {
 public:
  std::int64_t tokens() const { return tokens_; }

  // Keeps a copy of both behind those that are there.
  // REQUIRES: shapes differ from the earlier ones' in tokens alone.
  void append(const at::Tensor& keys, const at::Tensor& values);

  // Keys of all tokens, valid until the next append(); so are values().
  at::Tensor keys() const { return keys_.slice(2, 0, tokens_); }
  at::Tensor values() const { return values_.slice(2, 0, tokens_); }

 private:
  std::int64_t tokens_ = 0;
  at::Tensor keys_;
  at::Tensor values_;
};

}  // namespace penstock::nn
