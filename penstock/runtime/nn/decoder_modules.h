// What a decoder's layers are made of: projections, norms, attention, the feed-forward part.
//
// decoder.cpp makes its layers of them.  Parameters are named as transformers names them, and have
// no values yet: whoever makes a layer fills them.  Ranks that share a layer have some heads each,
// and some columns of the feed-forward part: what they compute are summands.
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

// The features of a projection that ranks share: those that come out, or those that come in.
enum class CutFeatures : std::uint8_t { Outputs, Inputs };

struct ProjectionShape {
  const char* name;
  const char* module;  // The module of the layer that it is in.
  std::int64_t in;
  std::int64_t out;
  bool has_bias;
  CutFeatures cut;
  std::int64_t unit = 1;    // Features that stay together.
  std::int64_t fused = 1;   // Several of as many outputs each are fused.
  std::int64_t copies = 1;  // Ranks that have the same ones.

  // How ranks share a tensor's dimension of these features.
  partition::Along along(std::size_t dimension) const {
    return {.dimension = dimension, .unit = unit, .fused = fused, .copies = copies};
  }
};

// Throws: ConfigError where so many ranks cannot have whole heads each, the queries of each with
// their keys; with the numbers of ranks that can.
void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks);

// x W + b, with W as the form stores it, and its adapter's product where it has one.
class Projection : public CutModule {
 public:
  Projection(const DecoderOptions& options, const Making& making, const ProjectionShape& shape);

  // The outputs; if these are cut, this rank's.  x has all inputs.
  at::Tensor forward(const at::Tensor& x);
  // The summand, from this rank's inputs, of what add_bias() makes the outputs of.
  at::Tensor summand(const at::Tensor& x);
  at::Tensor add_bias(const at::Tensor& sum) const;
  // Absent where it is more than x W^T + b.
  std::optional<Linear> plain() const;
  // Blocks in which it adds what ranks share; absent: in none.
  const std::optional<std::int64_t>& blocks() const { return blocks_; }

 private:
  void add_adapter(const AdapterOptions& adapter, const Making& making,
                   const ProjectionShape& shape);
  std::optional<at::Tensor> bias() const;
  at::Tensor product(const at::Tensor& x, const std::optional<at::Tensor>& bias);

  bool is_in_out_;
  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor adapter_in_;  // Undefined, as the next, where there is none.
  at::Tensor adapter_out_;
  at::Tensor lengths_;         // DoRA's; undefined where there are none.
  Dropout dropout_ = nullptr;  // Drops parts of what the adapter gets.
  std::int64_t in_;            // Inputs of all ranks, and those that come in here.
  Interval in_here_;
  double scale_ = 0.0;
  bool cuts_inputs_;
  std::optional<std::int64_t> blocks_;
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
  exchange::Sums sums() const;

  NormKind kind_;
  double epsilon_;
  bool recomputes_;
  std::optional<std::int64_t> blocks_;
  at::Tensor weight_;
  at::Tensor bias_;
};

using NormPointer = std::shared_ptr<NormModule>;

class DecoderAttention : public torch::nn::Module {
 public:
  // A query sees `window` tokens, itself included; absent: all up to its own.
  // Throws: ConfigError where ranks that share it cannot have whole heads, with the numbers of
  // ranks that can.
  DecoderAttention(const DecoderOptions& options, const Making& making,
                   std::optional<std::int64_t> window);

  // Attends, of x behind `norm`, to tokens up to each one's own.  A cache has the tokens before
  // them, and takes them in.
  at::Tensor forward(const at::Tensor& x, const NormModule& norm, KeyValueCache* cache = nullptr);
  // Attends within documents.  `starts` says at which place of its sample each token's document
  // begins: [microbatch, sequence] int64.
  at::Tensor forward_within(const at::Tensor& x, const NormModule& norm, const at::Tensor& starts);

  // What this rank's heads add to forward() of x, or to forward_within() where there are starts,
  // whose norm is given.
  at::Tensor summand(const at::Tensor& normed, const std::optional<at::Tensor>& starts,
                     KeyValueCache* cache = nullptr);
  // forward(), of the sum of all summands.
  at::Tensor behind_sum(const at::Tensor& sum) const { return output_->add_bias(sum); }

 private:
  struct Parts {  // [microbatch, heads, tokens, head_dim]
    at::Tensor queries, keys, values;
  };

  ProjectionPointer add(const DecoderOptions& options, const Making& making,
                        const ProjectionShape& shape);
  void share_heads(const DecoderOptions& options, const partition::Share& share);
  // Splits what projections give into queries, keys and values.
  Tensors split(Tensors projected) const;
  // [microbatch, sequence, heads, head_dim]
  at::Tensor by_heads(const at::Tensor& x, std::int64_t heads) const;
  // `turn` applies rotary positions.
  template <class Turn>
  Parts prepared(const Tensors& projected, const Turn& turn) const;
  // Each head of keys or values for all heads of queries that share it.
  at::Tensor repeated(const at::Tensor& x) const;
  bool reads_groups(const Parts& parts, const std::optional<at::Tensor>& mask) const;
  // The mixed values of all heads here, [microbatch, sequence, heads x head_dim].
  at::Tensor attend(const Parts& parts, const std::optional<at::Tensor>& mask,
                    bool is_causal) const;
  at::Tensor attended(const Tensors& projected, KeyValueCache* cache);
  at::Tensor attended_within(const Tensors& projected, const at::Tensor& starts);
  // The keys that a query of x sees, behind `past` others; absent: all up to its own.
  std::optional<at::Tensor> mask_of(const at::Tensor& x, std::int64_t past);
  // The keys that a query sees of its own document: [microbatch, 1, queries, keys].
  at::Tensor mask_within(const at::Tensor& places, const at::Tensor& starts) const;

  std::int64_t heads_;          // Heads of queries that are here.
  std::int64_t kv_heads_;       // Heads of keys and values that are here.
  std::int64_t kv_copies_ = 1;  // Ranks that have the same heads of keys and values.
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

  // What this rank's columns add to forward() of x, whose norm is given, and forward() of the sum
  // of all summands.
  at::Tensor summand(const at::Tensor& normed) const;
  at::Tensor behind_sum(const at::Tensor& sum) const { return out_->add_bias(sum); }

 private:
  ProjectionPointer add(const DecoderOptions& options, const Making& making, const char* name,
                        std::int64_t in, std::int64_t out, CutFeatures cut);
  // The projections of the normed input, the gate's first.
  Projections into() const;
  // What comes out of these, [microbatch, sequence, intermediate].
  at::Tensor activated(const Tensors& projected) const;

  MlpKind kind_;
  bool recomputes_;
  ProjectionPointer gate_;
  ProjectionPointer in_;
  ProjectionPointer out_;
};

}  // namespace penstock::nn
