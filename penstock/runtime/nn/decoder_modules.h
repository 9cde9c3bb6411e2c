// What a decoder's layers are made of: projections, norms, the feed-forward part.
//
// decoder.cpp makes its layers of them, and of attention (decoder_attention.h).  Parameters are
// named as transformers names them, and have no values yet: whoever makes a layer fills them. Ranks
// that share a layer have some heads each, and some columns of the feed-forward part: what they
// compute are summands. Shapes: x and results are [microbatch, sequence, hidden].
#pragma once
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/runtime/nn/dropout.h"
#include "penstock/runtime/nn/making.h"
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

// Each projection of x.
Tensors outputs_of(const Projections& projections, const at::Tensor& x);

class NormModule : public torch::nn::Module {
 public:
  NormModule(const DecoderOptions& options, const Making& making, NormKind kind,
             std::int64_t width);
  NormModule(const DecoderOptions& options, const Making& making, std::int64_t width)
      : NormModule(options, making, options.norm, width) {}

  at::Tensor forward(const at::Tensor& x) const;
  // x + added, and its norm.  The sum may take the memory of `added`.
  Tensors forward_of_sum(const at::Tensor& x, at::Tensor added) const;
  // Each projection of the normed x.
  Tensors projected(const at::Tensor& x, const Projections& projections) const;
  // x + added, and each projection of its norm.
  Tensors projected_of_sum(const at::Tensor& x, at::Tensor added,
                           const Projections& projections) const;

 private:
  exchange::Sums sums() const;
  // The plain projections, if this norm and they are computed again; else empty.
  std::vector<Linear> computed_again(const Projections& projections) const;

  NormKind kind_;
  double epsilon_;
  double offset_;
  bool recomputes_;
  std::optional<std::int64_t> blocks_;
  at::Tensor weight_;
  at::Tensor bias_;
};

using NormPointer = std::shared_ptr<NormModule>;

// Each projection of x behind `norm`, or of x where that is null.
Tensors projected_behind(const NormModule* norm, const at::Tensor& x,
                         const Projections& projections);
// x + added, and those of that.
Tensors projected_behind_sum(const NormModule* norm, const at::Tensor& x, at::Tensor added,
                             const Projections& projections);

class DecoderFeedForward : public torch::nn::Module {
 public:
  explicit DecoderFeedForward(const DecoderOptions& options, const Making& making);

  // x + added, and the feed-forward part of that behind `norm`, if there is one.
  Tensors forward_of_sum(const at::Tensor& x, at::Tensor added, const NormModule* norm) const;

  // What this rank's columns add to the feed-forward part of x, whose norm is given, and that part
  // of the sum of all summands.
  at::Tensor summand(const at::Tensor& normed) const;
  at::Tensor behind_sum(const at::Tensor& sum) const { return out_->add_bias(sum); }

 private:
  ProjectionPointer add(const DecoderOptions& options, const Making& making, const char* name,
                        std::int64_t in, std::int64_t out, CutFeatures cut, std::int64_t fused = 1);
  // The projections of the normed input, the gate's first, and what comes out of them.
  Projections into() const;
  Tensors split(Tensors projected) const;
  bool recomputes_gated() const;
  // What comes out of these, [microbatch, sequence, intermediate].
  at::Tensor activated(const Tensors& projected) const;
  at::Tensor forward(const Tensors& projected) const;

  MlpKind kind_;
  bool recomputes_;
  ProjectionPointer gate_;  // Null: `in_` has it, or there is none.
  ProjectionPointer in_;
  ProjectionPointer out_;
};

}  // namespace penstock::nn
