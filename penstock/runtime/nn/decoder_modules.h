// What a decoder's layers are made of: projections, norms, attention, the feed-forward part.
//
// decoder.cpp makes its layers of them.  Parameters are named as transformers names them, and have
// no values yet: whoever makes a layer fills them.
// Shapes: x and results are [microbatch, sequence, hidden].
#pragma once
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/nn/key_value_cache.h"
#include "penstock/runtime/nn/dropout.h"
#include "penstock/runtime/nn/making.h"
#include "penstock/runtime/nn/rotary.h"
#include "penstock/runtime/nn/selective.h"

namespace penstock::nn {

// x W + b, with W as the form stores it, and its adapter's product where it has one.
class Projection : public torch::nn::Module {
 public:
  Projection(const DecoderOptions& options, const Making& making, const char* name, std::int64_t in,
             std::int64_t out, bool has_bias);

  at::Tensor forward(const at::Tensor& x);
  // Absent where it is more than x W^T + b.
  std::optional<Linear> plain() const;

 private:
  at::Tensor add(std::string_view name, at::Tensor weight);

  bool is_in_out_;
  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor adapter_in_;  // Undefined, as the next, where there is none.
  at::Tensor adapter_out_;
  Dropout dropout_ = nullptr;  // Drops parts of what the adapter gets.
  double scale_ = 0.0;
};

using ProjectionPointer = std::shared_ptr<Projection>;
using Projections = std::vector<ProjectionPointer>;

class NormModule : public torch::nn::Module {
 public:
  NormModule(const DecoderOptions& options, const Making& making, NormKind kind,
             std::int64_t width);
  NormModule(const DecoderOptions& options, const Making& making, std::int64_t width)
      : NormModule(options, making, options.norm, width) {}

  at::Tensor forward(const at::Tensor& x) const;
  // Each projection of the normed x.
  Tensors projected(const at::Tensor& x, const Projections& projections) const;

 private:
  NormKind kind_;
  double epsilon_;
  bool recomputes_;
  at::Tensor weight_;
  at::Tensor bias_;
};

using NormPointer = std::shared_ptr<NormModule>;

class DecoderAttention : public torch::nn::Module {
 public:
  // A query sees `window` tokens, itself included; absent: all up to its own.
  DecoderAttention(const DecoderOptions& options, const Making& making,
                   std::optional<std::int64_t> window);

  // Attends, of x behind `norm`, to tokens up to each one's own.  A cache has the tokens before
  // them, and takes them in.
  at::Tensor forward(const at::Tensor& x, const NormModule& norm, KeyValueCache* cache = nullptr);
  // Attends within documents.  `starts` says at which place of its sample each token's document
  // begins: [microbatch, sequence] int64.
  at::Tensor forward_within(const at::Tensor& x, const NormModule& norm, const at::Tensor& starts);

 private:
  struct Parts {  // [microbatch, heads, tokens, head_dim]
    at::Tensor queries, keys, values;
  };

  ProjectionPointer add(const DecoderOptions& options, const Making& making, const char* name,
                        std::int64_t in, std::int64_t out, bool has_bias);
  std::vector<at::Tensor> queries_keys_values(const at::Tensor& x, const NormModule& norm) const;
  // [microbatch, sequence, heads, head_dim]
  at::Tensor by_heads(const at::Tensor& x, std::int64_t heads) const;
  // `turn` applies rotary positions.
  template <class Turn>
  Parts prepared(const at::Tensor& x, const NormModule& norm, const Turn& turn) const;
  // Each head of keys or values for all heads of queries that share it.
  at::Tensor repeated(const at::Tensor& x) const;
  bool reads_groups(const Parts& parts, const std::optional<at::Tensor>& mask) const;
  at::Tensor attend(const Parts& parts, const std::optional<at::Tensor>& mask,
                    bool is_causal) const;
  // The keys that a query of x sees, behind `past` others; absent: all up to its own.
  std::optional<at::Tensor> mask_of(const at::Tensor& x, std::int64_t past);
  // The keys that a query sees of its own document: [microbatch, 1, queries, keys].
  at::Tensor mask_within(const at::Tensor& places, const at::Tensor& starts) const;

  std::int64_t heads_;
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  std::optional<std::int64_t> window_;
  Projections projections_;  // A projection for all three, or three.
  ProjectionPointer output_;
  NormPointer q_norm_;
  NormPointer k_norm_;
  std::optional<Rotary> rotary_;
  at::Tensor mask_;  // The last one: [queries, keys].
};

class DecoderFeedForward : public torch::nn::Module {
 public:
  explicit DecoderFeedForward(const DecoderOptions& options, const Making& making);

  // The feed-forward part of x behind `norm`.
  at::Tensor forward(const at::Tensor& x, const NormModule& norm) const;

 private:
  ProjectionPointer add(const DecoderOptions& options, const Making& making, const char* name,
                        std::int64_t in, std::int64_t out);

  MlpKind kind_;
  bool recomputes_;
  ProjectionPointer gate_;
  ProjectionPointer in_;
  ProjectionPointer out_;
};

}  // namespace penstock::nn
