// Layers of your own that ranks share, each with a part of the weights (mesh axis "tensor").
//
// A layer says its pieces and the exchanges between them as data (exchange/pieces.h); a Trainer
// proves that they fit the layers around it, before a layer is made, runs them, and sums the
// gradients that follow from the states.  No code here sends anything.  docs/parallelism.md has an
// example.
// Shapes: a value that is cut has this rank's part along one dimension; parts have sizes that
// differ by 1 at most.
// Random numbers: a piece draws the same ones on every rank, whatever part of a value it has.
// Numerics: with TrainerOptions::sums invariant, ColumnLinear, RowLinear and VocabularyEmbedding
// give the bits of any number of ranks.  A layer of which all sums do says so: LayerMeta::sums.
// Source: Shoeybi et al., Megatron-LM (2019); Korthikanti et al. (2022) for cut tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "penstock/nn/layer.h"
#include "penstock/plan/exchange/pieces.h"
#include "penstock/runtime/nn/making.h"

namespace penstock::nn {

// A linear of a shared layer: first values are those of torch::nn::Linear, and each rank's part has
// the bits that it has in the whole.  Where nobody shares it, outputs have the bits of that, too.
struct SharedLinearOptions {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = true;
  std::int64_t unit = 1;    // Features that stay together, as those of a head do.
  std::int64_t copies = 1;  // Ranks in a row that have the same part; divides their number.
  // Number of linears of equal size in a ColumnLinear, whose outputs lie one behind the other.
  std::int64_t fused = 1;
};

// x W^T + b with a part of the outputs.
class ColumnLinear : public CutModule {
 public:
  // Throws: ConfigError for more ranks than units of outputs.
  ColumnLinear(const Making& making, const SharedLinearOptions& options);
  // Takes [..., in], all of it, and gives [..., this rank's outputs].
  at::Tensor forward(const at::Tensor& x) const;

 private:
  std::optional<std::int64_t> blocks_;
  at::Tensor weight_;
  at::Tensor bias_;
};

// x W^T + b with a part of the inputs: summand() gives a partial value, and the piece behind its
// exchange adds the bias.
class RowLinear : public CutModule {
 public:
  // Throws: ConfigError for more ranks than units of inputs.
  RowLinear(const Making& making, const SharedLinearOptions& options);
  // Takes [..., in] and gives [..., out].  REQUIRES: nobody shares it.
  at::Tensor forward(const at::Tensor& x) const;
  // Takes [..., this rank's inputs] and gives a summand of [..., out].
  at::Tensor summand(const at::Tensor& x) const;
  at::Tensor add_bias(const at::Tensor& sum) const;

 private:
  std::optional<std::int64_t> blocks_;
  at::Tensor weight_;
  at::Tensor bias_;
};

// Rows of a table by tokens, of which each rank has a part.
class VocabularyEmbedding : public CutModule {
 public:
  // Throws: ConfigError for more ranks than tokens.
  VocabularyEmbedding(const Making& making, std::int64_t vocabulary, std::int64_t width);
  // Takes tokens [...] int64 and gives a summand of [..., width].
  // Throws: Error for what is no token.
  at::Tensor summand(const at::Tensor& tokens) const;

 private:
  std::int64_t vocabulary_;
  at::Tensor weight_;
};

// A layer that runs in pieces on every rank, and one piece after the other where nobody shares it.
class LayerInPieces : public Layer {
 public:
  explicit LayerInPieces(std::size_t pieces) : pieces_(pieces) {}
  Values forward_values(const Values& inputs) override;
  Values forward_piece(std::size_t piece, const Values& values) override = 0;

 private:
  std::size_t pieces_;
};

// The recipe of a LayerInPieces that is constructed from (const Making&, arguments).
template <std::derived_from<LayerInPieces> Module, class... Args>
LayerSpec layer_in_pieces(std::string name, exchange::Pieces pieces, Args... args) {
  LayerSpec spec{.meta = {.name = std::move(name),
                          .type = type_name(typeid(Module)),
                          .parameters = kNotCounted,
                          .pieces = std::move(pieces)}};
  spec.make = [args...](const Making& making) -> std::shared_ptr<Layer> {
    return std::make_shared<Module>(making, args...);
  };
  return spec;
}

}  // namespace penstock::nn
