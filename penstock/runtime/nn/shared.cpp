#include "penstock/nn/shared.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/functional/linear.h>

#include <cmath>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/block_sums.h"
#include "penstock/runtime/nn/token_rows.h"

namespace penstock::nn {
namespace {

// Draws all values, and gives `part` its own.
template <class Draw>
void fill(at::Tensor part, const partition::Cut& cut, const Draw& draw) {
  const torch::NoGradGuard no_grad;
  at::Tensor whole = at::empty(partition::shape_of_whole(part.sizes().vec(), cut),
                               part.options().requires_grad(false));
  draw(whole);
  part.copy_(part_of(whole, cut));
}

void fill_linear(const at::Tensor& part, const partition::Cut& cut, std::int64_t in) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  fill(part, cut, [bound](at::Tensor& whole) { whole.uniform_(-bound, bound); });
}

// x W^T + b with the bits of torch::nn::Linear, which adds the bias behind the product.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return torch::nn::functional::linear(x, weight, bias);
}

// What several ranks have of a parameter, they add up in no order of blocks.
void check_copies(const Making& making, const SharedLinearOptions& options) {
  if (!making.blocks || making.share.of == 1 || options.copies == 1) return;
  throw ConfigError(penstock::str("mesh.tensor = ", making.share.of, " with numerics.invariant: ",
                                  options.copies, " ranks have the same part of a linear"),
                    {penstock::str("take mesh.tensor = ", making.share.of / options.copies,
                                   ", with which each rank has a part of its own")});
}

}  // namespace

ColumnLinear::ColumnLinear(const Making& making, const SharedLinearOptions& options)
    : blocks_(making.blocks) {
  check_width(making, "outputs of a linear", options.out, options.unit);
  check_copies(making, options);
  const partition::Along along{
      .unit = options.unit, .fused = options.fused, .copies = options.copies};
  weight_ = register_part("weight", making, {options.out, options.in}, along);
  fill_linear(weight_, cut_of(cuts(), "weight"), options.in);
  if (!options.bias) return;
  bias_ = register_part("bias", making, {options.out}, along);
  fill_linear(bias_, cut_of(cuts(), "bias"), options.in);
}

at::Tensor ColumnLinear::forward(const at::Tensor& x) const {
  if (blocks_) return linears_in_blocks(x, {{weight_, bias_}}, *blocks_).front();
  return product(x, weight_, bias_);
}

RowLinear::RowLinear(const Making& making, const SharedLinearOptions& options)
    : blocks_(making.blocks) {
  check_width(making, "inputs of a linear", options.in, options.unit);
  check_copies(making, options);
  weight_ = register_part("weight", making, {options.out, options.in},
                          {.dimension = 1, .unit = options.unit, .copies = options.copies});
  fill_linear(weight_, cut_of(cuts(), "weight"), options.in);
  if (!options.bias) return;
  bias_ = register_parameter("bias", making.parameter({options.out}));
  fill_linear(bias_, {}, options.in);
}

at::Tensor RowLinear::forward(const at::Tensor& x) const {
  return blocks_ ? add_bias(summand(x)) : product(x, weight_, bias_);
}

at::Tensor RowLinear::summand(const at::Tensor& x) const {
  return blocks_ ? summand_in_blocks(x, weight_, *blocks_) : product(x, weight_, {});
}

at::Tensor RowLinear::add_bias(const at::Tensor& sum) const {
  if (!bias_.defined()) return sum;
  return blocks_ ? add_bias_in_blocks(sum, bias_) : sum + bias_;
}

VocabularyEmbedding::VocabularyEmbedding(const Making& making, std::int64_t vocabulary,
                                         std::int64_t width)
    : vocabulary_(vocabulary), weight_(register_part("weight", making, {vocabulary, width}, {})) {
  fill(weight_, cut_of(cuts(), "weight"), [](at::Tensor& whole) { whole.normal_(); });
}

at::Tensor VocabularyEmbedding::summand(const at::Tensor& tokens) const {
  return embedding_of_part(weight_, cut_of(cuts(), "weight"), vocabulary_, tokens);
}

Values LayerInPieces::forward_values(const Values& inputs) {
  Values values = inputs;
  for (std::size_t piece = 0; piece < pieces_; ++piece) {
    const PieceScope draws(static_cast<std::int64_t>(piece));
    values = forward_piece(piece, values);
  }
  return values;
}

}  // namespace penstock::nn
