#include "penstock/nn/gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <limits>

#include "penstock/core/text.h"
#include "penstock/nn/shared.h"
#include "penstock/runtime/nn/decoder_attention.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/nn/dropout.h"
#include "penstock/runtime/nn/fill_parameter.h"
#include "penstock/runtime/nn/shared_tokens.h"
#include "penstock/runtime/nn/token_rows.h"

namespace penstock::nn {
namespace {

constexpr double kInitStd = 0.02;

// Deviation of what is added to the residual stream.
double residual_std(const GptOptions& options) {
  return kInitStd / std::sqrt(2.0 * static_cast<double>(options.layers));
}

// Gives a module's weight, of which this rank has a part, normal values, and its bias zeros.
template <class Module>
std::shared_ptr<Module> filled(std::shared_ptr<Module> module, double std) {
  const torch::NoGradGuard no_grad;
  const FillParameter fill = [std](const std::string& name, at::Tensor& whole) {
    if (name == "bias") {
      whole.zero_();
    } else {
      whole.normal_(0.0, std);
    }
  };
  for (auto& each : module->named_parameters()) {
    fill(each.key(), each.value(), cut_of(module->cuts(), each.key()));
  }
  return module;
}

std::shared_ptr<TableOfRows> table(const Making& making, RowsOf what, std::int64_t rows,
                                   std::int64_t width) {
  // Twice: torch::nn::Embedding draws values of its own first.
  return filled(filled(std::make_shared<TableOfRows>(making, what, rows, width), 1.0), kInitStd);
}

template <class LinearType>
std::shared_ptr<LinearType> linear(const Making& making, const SharedLinearOptions& options,
                                   double std) {
  return filled(std::make_shared<LinearType>(making, options), std);
}

torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

// What dropout multiplies this rank's tokens of a value by; undefined: by nothing.  Drawn where a
// rank has all of them, whose shape is given: apart they do not tell how many there are.
at::Tensor factors_of_tokens(Dropout& dropout, at::IntArrayRef whole,
                             const at::TensorOptions& options, const partition::Share& share) {
  return dropout->factors(whole, options, /*dimension=*/1, partition::part_of(whole[1], share));
}

at::Tensor times(const at::Tensor& x, const at::Tensor& factors) {
  return factors.defined() ? x * factors : x;
}

class Embedding : public Layer {
 public:
  Embedding(const GptOptions& options, const Making& making)
      : share_(making.share),
        wte_(register_module("wte",
                             table(making, RowsOf::Tokens, options.vocabulary, options.hidden))),
        wpe_(register_module(
            "wpe", table(making, RowsOf::Positions, options.sequence_length, options.hidden))),
        drop_(register_module("drop", Dropout(options.dropout))) {}

  at::Tensor forward(const at::Tensor& tokens) override {
    const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
    return drop_->forward(wte_->forward(tokens) + wpe_->forward(positions));
  }

  // Values are the tokens' summands, then their sums, and beside them the factors of dropout.
  Values forward_piece(std::size_t piece, const Values& values) override {
    if (piece > 0) return times(values[0], values[1]);
    const at::Tensor& tokens = values[0];
    const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
    const at::Tensor summand = wte_->summand(tokens) + wpe_->summand(positions);
    return {summand, factors_of_tokens(drop_, summand.sizes(), summand.options(), share_)};
  }

  static exchange::Pieces pieces() {
    return {{.takes = {exchange::kInvariant},
             .gives = {exchange::kPartial, kTokens},
             .behind = {sums(0)},
             .parameters = {"wte.weight", "wpe.weight"}},
            {.takes = {kTokens, kTokens}, .gives = {kTokens}}};
  }

 private:
  partition::Share share_;
  std::shared_ptr<TableOfRows> wte_;
  std::shared_ptr<TableOfRows> wpe_;
  Dropout drop_;
};

class Attention : public torch::nn::Module {
 public:
  Attention(const GptOptions& options, const Making& making)
      : share_(making.share),
        heads_(options.heads),
        head_dim_(options.hidden / options.heads),
        here_(partition::part_of(options.heads, making.share)),
        drops_(options.dropout > 0),
        drop_(register_module("drop", Dropout(options.dropout))) {
    const std::int64_t hidden = options.hidden;
    check_heads(heads_, heads_, share_.of);
    c_attn_ = register_module(
        "c_attn",
        linear<ColumnLinear>(
            making, {.in = hidden, .out = 3 * hidden, .unit = head_dim_, .fused = 3}, kInitStd));
    c_proj_ = register_module(
        "c_proj", linear<RowLinear>(making, {.in = hidden, .out = hidden, .unit = head_dim_},
                                    residual_std(options)));
  }

  at::Tensor forward(const at::Tensor& x) { return drop_->forward(c_proj_->forward(attended(x))); }

  // What this rank's heads add to forward(), of which dropout is left out; and forward(), of the
  // sum and the factors of dropout.
  at::Tensor summand(const at::Tensor& x) { return c_proj_->summand(attended(x)); }
  at::Tensor behind_sum(const at::Tensor& sum, const at::Tensor& factors) const {
    return times(c_proj_->add_bias(sum), factors);
  }
  at::Tensor factors(const at::Tensor& x) {
    return factors_of_tokens(drop_, x.sizes(), x.options(), share_);
  }

 private:
  // The mixed values of the heads here.
  at::Tensor attended(const at::Tensor& x) {
    const std::int64_t batch = x.size(0), sequence = x.size(1);
    const auto split = [&](const at::Tensor& t) {
      return t.view({batch, sequence, here_.count, head_dim_}).transpose(1, 2);
    };
    const auto qkv = c_attn_->forward(x).chunk(3, /*dim=*/2);
    const at::Tensor mixed =
        drops_ && is_training()
            ? attend_with_dropout(split(qkv[0]), split(qkv[1]), split(qkv[2]))
            : at::scaled_dot_product_attention(split(qkv[0]), split(qkv[1]), split(qkv[2]), {},
                                               /*dropout_p=*/0.0, /*is_causal=*/true);
    return mixed.transpose(1, 2).reshape({batch, sequence, here_.count * head_dim_});
  }

  // Torch's fused attention draws from torch's own generator.
  at::Tensor attend_with_dropout(const at::Tensor& queries, const at::Tensor& keys,
                                 const at::Tensor& values) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(queries.size(-1)));
    const at::Tensor scores = at::matmul(queries, keys.transpose(-2, -1)) * scale;
    const std::int64_t batch = scores.size(0), sequence = scores.size(-1);
    const at::Tensor later =
        at::ones({sequence, sequence}, queries.options().dtype(at::kBool)).triu(1);
    const at::Tensor weights =
        scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1);
    const at::Tensor factors = drop_->factors({batch, heads_, sequence, sequence},
                                              weights.options(), /*dimension=*/1, here_);
    return at::matmul(times(weights, factors), values);
  }

  partition::Share share_;
  std::int64_t heads_;  // Heads of all ranks.
  std::int64_t head_dim_;
  Interval here_;  // Heads that are here.
  bool drops_;
  Dropout drop_;
  std::shared_ptr<ColumnLinear> c_attn_;
  std::shared_ptr<RowLinear> c_proj_;
};

class FeedForward : public torch::nn::Module {
 public:
  FeedForward(const GptOptions& options, const Making& making)
      : share_(making.share),
        c_fc_(register_module(
            "c_fc", linear<ColumnLinear>(making, {.in = options.hidden, .out = 4 * options.hidden},
                                         kInitStd))),
        c_proj_(register_module(
            "c_proj", linear<RowLinear>(making, {.in = 4 * options.hidden, .out = options.hidden},
                                        residual_std(options)))),
        drop_(register_module("drop", Dropout(options.dropout))) {}

  at::Tensor forward(const at::Tensor& x) {
    return drop_->forward(c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh")));
  }

  // The same as those of Attention.
  at::Tensor summand(const at::Tensor& x) {
    return c_proj_->summand(at::gelu(c_fc_->forward(x), "tanh"));
  }
  at::Tensor behind_sum(const at::Tensor& sum, const at::Tensor& factors) const {
    return times(c_proj_->add_bias(sum), factors);
  }
  at::Tensor factors(const at::Tensor& x) {
    return factors_of_tokens(drop_, x.sizes(), x.options(), share_);
  }

 private:
  partition::Share share_;
  std::shared_ptr<ColumnLinear> c_fc_;
  std::shared_ptr<RowLinear> c_proj_;
  Dropout drop_;
};

class Block : public Layer {
 public:
  Block(const GptOptions& options, const Making& making)
      : ln_1_(register_module("ln_1", layer_norm(options.hidden))),
        attn_(register_module("attn", std::make_shared<Attention>(options, making))),
        ln_2_(register_module("ln_2", layer_norm(options.hidden))),
        mlp_(register_module("mlp", std::make_shared<FeedForward>(options, making))) {}

  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor attended = x + attn_->forward(ln_1_->forward(x));
    return attended + mlp_->forward(ln_2_->forward(attended));
  }

  enum : std::size_t { kNormForAttention, kAttention, kNormForMlp, kMlp, kSum };

  // Values are x, what is made of it, and the factors of dropout behind the attention and behind
  // the feed-forward part.
  Values forward_piece(std::size_t piece, const Values& values) override {
    const at::Tensor& x = values[0];
    switch (piece) {
      case kNormForAttention:
        return {x, ln_1_->forward(x)};
      case kAttention: {
        // Here all tokens are.  The numbers are those that forward() draws one after the other.
        const PieceScope draws(0);
        const at::Tensor summand = attn_->summand(values[1]);
        const at::Tensor behind_attention = attn_->factors(values[1]);
        return {x, summand, behind_attention, mlp_->factors(values[1])};
      }
      case kNormForMlp: {
        const at::Tensor attended = x + attn_->behind_sum(values[1], values[2]);
        return {attended, ln_2_->forward(attended), values[3]};
      }
      case kMlp:
        return {x, mlp_->summand(values[1]), values[2]};
      default:
        return x + mlp_->behind_sum(values[1], values[2]);
    }
  }

  static exchange::Pieces pieces() {
    return {{.takes = {kTokens},
             .gives = {kTokens, kTokens},
             .behind = {gathers(1)},
             .parameters = {"ln_1.weight", "ln_1.bias"}},
            {.takes = {kTokens, exchange::kReplicated},
             .gives = {kTokens, exchange::kPartial, kTokens, kTokens},
             .behind = {sums(1)},
             .parameters = {"attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight"}},
            {.takes = {kTokens, kTokens, kTokens, kTokens},
             .gives = {kTokens, kTokens, kTokens},
             .behind = {gathers(1)},
             .parameters = {"attn.c_proj.bias", "ln_2.weight", "ln_2.bias"}},
            {.takes = {kTokens, exchange::kReplicated, kTokens},
             .gives = {kTokens, exchange::kPartial, kTokens},
             .behind = {sums(1)},
             .parameters = {"mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight"}},
            {.takes = {kTokens, kTokens, kTokens},
             .gives = {kTokens},
             .parameters = {"mlp.c_proj.bias"}}};
  }

 private:
  torch::nn::LayerNorm ln_1_;
  std::shared_ptr<Attention> attn_;
  torch::nn::LayerNorm ln_2_;
  std::shared_ptr<FeedForward> mlp_;
};

class MlpBlock : public Layer {
 public:
  MlpBlock(const GptOptions& options, const Making& making)
      : share_(making.share),
        net1_(register_module(
            "net1",
            linear<ColumnLinear>(making, {.in = options.hidden, .out = options.hidden}, kInitStd))),
        net2_(register_module(
            "net2",
            linear<RowLinear>(making, {.in = options.hidden, .out = options.hidden}, kInitStd))),
        drop_(register_module("drop", Dropout(options.dropout))) {}

  at::Tensor forward(const at::Tensor& x) override {
    return x + drop_->forward(net2_->forward(at::relu(net1_->forward(x))));
  }

  enum : std::size_t { kGather, kMlp, kSum };

  // Values are x, what is made of it, and the factors of dropout.
  Values forward_piece(std::size_t piece, const Values& values) override {
    const at::Tensor& x = values[0];
    if (piece == kGather) return {x, x};
    if (piece == kSum) return x + times(net2_->add_bias(values[1]), values[2]);
    const at::Tensor& all = values[1];
    const PieceScope draws(0);
    return {x, net2_->summand(at::relu(net1_->forward(all))),
            factors_of_tokens(drop_, all.sizes(), all.options(), share_)};
  }

  static exchange::Pieces pieces() {
    return {
        {.takes = {kTokens}, .gives = {kTokens, kTokens}, .behind = {gathers(1)}},
        {.takes = {kTokens, exchange::kReplicated},
         .gives = {kTokens, exchange::kPartial, kTokens},
         .behind = {sums(1)},
         .parameters = {"net1.weight", "net1.bias", "net2.weight"}},
        {.takes = {kTokens, kTokens, kTokens}, .gives = {kTokens}, .parameters = {"net2.bias"}}};
  }

 private:
  partition::Share share_;
  std::shared_ptr<ColumnLinear> net1_;
  std::shared_ptr<RowLinear> net2_;
  Dropout drop_;
};

class Head : public Layer {
 public:
  Head(const GptOptions& options, const Making& making)
      : ln_f_(register_module("ln_f", layer_norm(options.hidden))),
        lm_head_(register_module(
            "lm_head", linear<ColumnLinear>(
                           making, {.in = options.hidden, .out = options.vocabulary, .bias = false},
                           kInitStd))) {}

  at::Tensor forward(const at::Tensor& x) override { return lm_head_->forward(ln_f_->forward(x)); }
  Values forward_piece(std::size_t piece, const Values& values) override {
    return piece == 0 ? ln_f_->forward(values[0]) : lm_head_->forward(values[0]);
  }

  static exchange::Pieces pieces(const GptOptions& options) {
    return {{.takes = {kTokens},
             .gives = {kTokens},
             .behind = {gathers(0)},
             .parameters = {"ln_f.weight", "ln_f.bias"}},
            {.takes = {exchange::kReplicated},
             .gives = {exchange::cut(/*dimension=*/2, options.vocabulary)},
             .parameters = {"lm_head.weight"}}};
  }

 private:
  torch::nn::LayerNorm ln_f_;
  std::shared_ptr<ColumnLinear> lm_head_;
};

template <class BlockType>
std::vector<LayerSpec> around(const GptOptions& options, const char* block_type,
                              std::int64_t block_parameters) {
  const std::int64_t h = options.hidden;
  const auto make = []<class L>(const GptOptions& o, std::type_identity<L>) {
    return [o](const Making& making) { return std::make_shared<L>(o, making.as_they_come()); };
  };
  std::vector<LayerSpec> layers;
  layers.push_back({{.name = "transformer",
                     .type = "Embedding",
                     .parameters = (options.vocabulary + options.sequence_length) * h,
                     .pieces = Embedding::pieces()},
                    make(options, std::type_identity<Embedding>{})});
  for (std::int64_t i = 0; i < options.layers; ++i) {
    layers.push_back({{.name = str("transformer.h.", i),
                       .type = block_type,
                       .parameters = block_parameters,
                       .pieces = BlockType::pieces()},
                      make(options, std::type_identity<BlockType>{})});
  }
  layers.push_back({{.name = "head",
                     .type = "Head",
                     .parameters = 2 * h + options.vocabulary * h,
                     .pieces = Head::pieces(options)},
                    make(options, std::type_identity<Head>{})});
  if (options.tie_embeddings) {
    layers.front() = TiedLayerSpec("wte", layers.front(), {"wte.weight"});
    layers.back() = TiedLayerSpec("wte", layers.back(), {"lm_head.weight"});
  }
  return layers;
}

}  // namespace

std::vector<LayerSpec> gpt_layers(const GptOptions& options) {
  const std::int64_t h = options.hidden;
  return around<Block>(options, "Block", 12 * h * h + 13 * h);
}

std::vector<LayerSpec> byte_mlp_layers(const GptOptions& options) {
  const std::int64_t h = options.hidden;
  return around<MlpBlock>(options, "MlpBlock", 2 * h * h + 2 * h);
}

at::Tensor next_byte_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

}  // namespace penstock::nn
