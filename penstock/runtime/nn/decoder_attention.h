// A decoder's attention: queries, keys and values of heads, turned by positions, within windows and
// documents.
//
// decoder.cpp makes blocks of it and of decoder_modules.h, whose words it uses.  Ranks that share a
// layer have some heads each.
// Shapes: x and results are [microbatch, sequence, hidden].
#pragma once
#include <memory>
#include <optional>

#include "penstock/nn/decoder.h"
#include "penstock/nn/key_value_cache.h"
#include "penstock/runtime/nn/decoder_modules.h"
#include "penstock/runtime/nn/rotary.h"
#include "penstock/runtime/nn/width_norm.h"

namespace penstock::nn {

// Throws: ConfigError where so many ranks cannot have whole heads each, the queries of each with
// their keys; with the numbers of ranks that can.
void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks);

// What differs from layer to layer.
struct AttentionOfLayer {
  std::optional<std::int64_t> window;   // Tokens that a query sees, itself included; absent: all.
  std::optional<RotaryOptions> rotary;  // Absent: queries and keys are not turned.
};
AttentionOfLayer attention_of(const DecoderOptions& options, std::int64_t layer);

class DecoderAttention : public torch::nn::Module {
 public:
  // Throws: ConfigError where ranks that share it cannot have whole heads, with the numbers of
  // ranks that can.
  DecoderAttention(const DecoderOptions& options, const Making& making,
                   const AttentionOfLayer& of_layer);

  // Queries, keys and values, of x behind `norm` if there is one; all heads are here.
  Tensors heads(const at::Tensor& x, const NormModule* norm) const;
  // What these attend to, tokens up to each one's own.  `starts`: within documents; at which place
  // of its sample each token's document begins, [microbatch, sequence] int64.  A cache has the
  // tokens before them, and takes them in.
  at::Tensor forward(Tensors heads, const std::optional<at::Tensor>& starts,
                     KeyValueCache* cache = nullptr);

  // The same of this rank's heads, of x whose norm is given.  With norms of all heads together also
  // the squares that these need the sum of.
  Tensors heads_here(const at::Tensor& normed) const;
  // What this rank's heads add to forward(): of heads_here() with the sum of all ranks' squares.
  at::Tensor summand(Tensors heads, const std::optional<at::Tensor>& starts,
                     KeyValueCache* cache = nullptr);
  // forward(), of the sum of all summands.
  at::Tensor behind_sum(const at::Tensor& sum) const { return output_->add_bias(sum); }

 private:
  struct Parts {  // [microbatch, heads, tokens, head_dim]
    at::Tensor queries, keys, values;
  };

  ProjectionPointer add(const DecoderOptions& options, const Making& making,
                        const ProjectionShape& shape);
  void add_projections(const DecoderOptions& options, const Making& making);
  void add_norms(const DecoderOptions& options, const Making& making);
  void share_heads(const DecoderOptions& options, const partition::Share& share);
  partition::Along queries_along() const;
  partition::Along keys_along() const;
  // Splits what projections give into queries, keys and values.
  Tensors split(Tensors projected) const;
  // [microbatch, sequence, heads, head_dim], of x as it is or as projections give it.
  at::Tensor by_heads(const at::Tensor& x, std::int64_t heads) const;
  // `turn` applies rotary positions to queries and keys.
  template <class Turn>
  Parts prepared(Tensors heads, const Turn& turn) const;
  // Each head of keys or values for all heads of queries that share it.
  at::Tensor repeated(const at::Tensor& x) const;
  bool reads_groups(const Parts& parts, const std::optional<at::Tensor>& mask) const;
  // Computes by host_attention.h; absent where that does not take these.
  std::optional<at::Tensor> attend_on_host(const Parts& parts,
                                           const std::optional<at::Tensor>& starts) const;
  // The mixed values, by heads, and of all heads here [microbatch, sequence, heads x head_dim].
  at::Tensor mixed(const Parts& parts, const std::optional<at::Tensor>& mask, bool is_causal) const;
  at::Tensor attend(const Parts& parts, const std::optional<at::Tensor>& mask,
                    bool is_causal) const;
  at::Tensor attended(Tensors heads, const std::optional<at::Tensor>& starts, KeyValueCache* cache);
  at::Tensor attended_behind(Tensors heads, KeyValueCache* cache);
  at::Tensor attended_within(Tensors heads, const at::Tensor& starts);
  // The keys that each query sees, behind `past` others; absent: all up to its own.
  std::optional<at::Tensor> mask_of(const at::Tensor& queries, std::int64_t past);
  // The keys that a query sees of its own document: [microbatch, 1, queries, keys].
  at::Tensor mask_within(const at::Tensor& places, const at::Tensor& starts) const;

  std::int64_t heads_;          // Heads of queries that are here.
  std::int64_t kv_heads_;       // Heads of keys and values that are here.
  std::int64_t kv_copies_ = 1;  // Ranks that have the same heads of keys and values.
  std::int64_t query_unit_;     // Features of queries that stay together.
  std::int64_t head_dim_;
  std::optional<std::int64_t> window_;
  double scale_;  // Products of queries and keys are multiplied by it.
  std::optional<double> score_cap_;
  Projections projections_;  // A projection for all three, or three.
  ProjectionPointer output_;
  NormPointer q_norm_;  // Null, as the next, where heads have none of their own.
  NormPointer k_norm_;
  std::shared_ptr<WidthNorm> q_width_norm_;
  std::shared_ptr<WidthNorm> k_width_norm_;
  std::optional<Rotary> rotary_;
  at::Tensor mask_;  // The last one: [queries, keys].
};

}  // namespace penstock::nn
