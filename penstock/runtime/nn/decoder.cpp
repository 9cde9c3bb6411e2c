#include "penstock/nn/decoder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/adapter_checks.h"
#include "penstock/runtime/nn/block_sums.h"
#include "penstock/runtime/nn/decoder_attention.h"
#include "penstock/runtime/nn/decoder_bits.h"
#include "penstock/runtime/nn/decoder_modules.h"
#include "penstock/runtime/nn/decoder_pieces.h"
#include "penstock/runtime/nn/products.h"
#include "penstock/runtime/nn/token_rows.h"

namespace penstock::nn {
namespace {

// [samples, sequence]: at which place of its sample each token's document begins.
at::Tensor document_starts(const at::Tensor& tokens, std::int64_t document_end) {
  const at::Tensor places = at::arange(tokens.size(1), tokens.options());
  const at::Tensor is_behind_end = tokens.slice(1, 0, -1) == document_end;
  at::Tensor begins = at::zeros_like(tokens);  // A place where a document begins, else 0.
  begins.slice(1, 1).copy_(is_behind_end * places.slice(0, 1));
  return std::get<0>(begins.cummax(1));
}

class DecoderEmbedding : public DecoderLayer {
 public:
  DecoderEmbedding(const DecoderOptions& options, const Making& making)
      : document_end_(options.document_end),
        scale_(options.embedding_scale),
        rounds_scale_(options.rounds_embedding_scale),
        equal_shares_(making.blocks ? making.share.of : 1) {
    const auto table = [&](RowsOf what, std::int64_t rows) {
      return std::make_shared<TableOfRows>(making, what, rows, options.hidden);
    };
    tokens_ = table(RowsOf::Tokens, options.vocabulary);
    if (!is_gpt2(options)) {  // The table is the layer itself.
      register_parameter("weight", tokens_->named_parameters()["weight"]);
      take_cuts(*tokens_);
      return;
    }
    register_module("wte", tokens_);
    if (!options.rotary) {
      positions_ = register_module("wpe", table(RowsOf::Positions, options.positions));
    }
  }

  at::Tensor forward(const at::Tensor& tokens) override { return embedded(tokens, 0); }
  Values forward_values(const Values& inputs) override {
    const at::Tensor& tokens = the_only(inputs, "a decoder");
    if (!document_end_) return forward(tokens);
    const at::Tensor starts = document_starts(tokens, *document_end_);
    return {embedded(tokens, -starts), starts};
  }
  // The summands of the tokens, and of the positions, whose rows are here: each rank has some of
  // either, and their sums are those of one rank, in any order.
  Values forward_piece(std::size_t /*piece*/, const Values& values) override {
    const at::Tensor& tokens = the_only(values, "a decoder");
    check_length(tokens.size(1));
    if (!document_end_) return summand(tokens, 0);
    const at::Tensor starts = document_starts(tokens, *document_end_);
    return {summand(tokens, -starts), starts};
  }
  at::Tensor continue_behind(std::int64_t past, KeyValueCache& /*cache*/,
                             const at::Tensor& tokens) override {
    return embedded(tokens, past);
  }
  at::Tensor continue_together(std::int64_t past, KeyValueCache& /*cache*/,
                               const at::Tensor& tokens, const PutTogether& ranks) override {
    return ranks.sum(summand(tokens, past));
  }

 private:
  at::Tensor scaled(const at::Tensor& x) const {
    if (scale_ == 1.0) return x;
    if (!rounds_scale_) return x * scale_;
    return x * at::scalar_tensor(scale_, x.scalar_type()).item();
  }
  // Embeds tokens whose positions are their places plus `offset`: a number, or one for each.
  template <class Offset>
  at::Tensor embedded(const at::Tensor& tokens, const Offset& offset) const {
    const at::Tensor embedded = scaled(tokens_->forward(tokens));
    if (!positions_) return embedded;
    const at::Tensor places = at::arange(tokens.size(1), tokens.options());
    return embedded + positions_->forward(places + offset);
  }
  template <class Offset>
  at::Tensor summand(const at::Tensor& tokens, const Offset& offset) const {
    const at::Tensor summand = scaled(tokens_->summand(tokens));
    if (!positions_) return summand;
    const at::Tensor places = at::arange(tokens.size(1), tokens.options());
    return summand + positions_->summand(places + offset);
  }

  // Sums over tokens have blocks, which ranks have whole.
  void check_length(std::int64_t tokens) const {
    if (tokens % equal_shares_ == 0) return;
    throw Error(penstock::str("samples of ", tokens, " tokens: with numerics.invariant, ",
                              equal_shares_, " ranks share samples of equal parts"),
                {penstock::str("give them a multiple of ", equal_shares_, " tokens")});
  }

  std::optional<std::int64_t> document_end_;
  double scale_;
  bool rounds_scale_;
  std::int64_t equal_shares_;  // Ranks that need as many tokens of a sample each.
  std::shared_ptr<TableOfRows> tokens_;
  std::shared_ptr<TableOfRows> positions_;  // Null: they are rotary.
};

class DecoderBlock : public DecoderLayer {
 public:
  DecoderBlock(const DecoderOptions& options, const Making& making,
               const AttentionOfLayer& of_layer)
      : pieces_(block_pieces(options)),
        knows_documents_(options.document_end),
        residual_scale_(options.residual_scale) {
    const bool gpt2 = is_gpt2(options);
    const bool is_before = options.norm_places != NormPlaces::Behind;
    const bool is_behind = options.norm_places != NormPlaces::Before;
    const auto norm = [&](bool is_there, const char* name) {
      if (!is_there) return NormPointer();
      return register_module(name, std::make_shared<NormModule>(options, making, options.hidden));
    };
    attention_norm_ = norm(is_before, gpt2 ? "ln_1" : "input_layernorm");
    attention_ = register_module(gpt2 ? "attn" : "self_attn",
                                 std::make_shared<DecoderAttention>(options, making, of_layer));
    // A norm behind the attention has the name that one before the next part has elsewhere.
    const char* const between = gpt2 ? "ln_2" : "post_attention_layernorm";
    norm_behind_attention_ = norm(is_behind, between);
    mlp_norm_ = norm(is_before, is_behind ? "pre_feedforward_layernorm" : between);
    mlp_ = register_module("mlp", std::make_shared<DecoderFeedForward>(options, making));
    norm_behind_mlp_ = norm(is_behind, "post_feedforward_layernorm");
  }

  at::Tensor forward(const at::Tensor& x) override { return behind(x, attention(x, {})); }
  Values forward_values(const Values& inputs) override {
    if (inputs.size() != 2) return Layer::forward_values(inputs);
    const at::Tensor &x = inputs[0], &starts = inputs[1];
    return {behind(x, attention(x, starts)), starts};
  }
  at::Tensor continue_behind(std::int64_t /*past*/, KeyValueCache& cache,
                             const at::Tensor& x) override {
    return behind(x, attention(x, {}, &cache));
  }
  at::Tensor continue_together(std::int64_t /*past*/, KeyValueCache& cache, const at::Tensor& x,
                               const PutTogether& ranks) override {
    Tensors heads = attention_->heads_here(normed(attention_norm_, x));
    if (has_piece(BlockPiece::Heads)) heads.back() = ranks.sum(heads.back());
    const at::Tensor attention =
        ranks.sum(attention_->summand(std::move(heads), /*starts=*/{}, &cache));
    const Tensors attended = with_norm_for_mlp(x, attention_->behind_sum(attention));
    const at::Tensor mlp = ranks.sum(mlp_->summand(attended[1]));
    return with_mlp(attended[0], mlp_->behind_sum(mlp));
  }

  // Values are x, what is made of it, and where documents begin, if anything says so.  Sums of
  // summands are added to x: so x and what is normed of it are of some of the tokens, what the
  // summands are made of is of all.
  Values forward_piece(std::size_t piece, const Values& values) override {
    Tensors of(values.begin() + 1, values.end());
    std::optional<at::Tensor> starts;
    if (knows_documents_) {
      starts = of.back();
      of.pop_back();
    }
    Values given = made(pieces_[piece], values[0], of, starts);
    if (starts) given.push_back(*starts);
    return given;
  }

 private:
  Values made(BlockPiece piece, const at::Tensor& x, const Tensors& of,
              const std::optional<at::Tensor>& starts) {
    switch (piece) {
      case BlockPiece::NormForAttention:
        return {x, normed(attention_norm_, x)};
      case BlockPiece::Heads: {
        Values given = attention_->heads_here(of[0]);
        given.insert(given.begin(), x);
        return given;
      }
      case BlockPiece::Attention:
        return {x, attention_->summand(
                       has_piece(BlockPiece::Heads) ? of : attention_->heads_here(of[0]), starts)};
      case BlockPiece::NormForMlp:
        return with_norm_for_mlp(x, attention_->behind_sum(of[0]));
      case BlockPiece::Mlp:
        return {x, mlp_->summand(of[0])};
      case BlockPiece::Sum:
        return {with_mlp(x, mlp_->behind_sum(of[0]))};
    }
    return {};
  }

  bool has_piece(BlockPiece piece) const { return std::ranges::count(pieces_, piece) > 0; }

  // Not x itself, which is handed on beside it.
  static at::Tensor normed(const NormPointer& norm, const at::Tensor& x) {
    return norm ? norm->forward(x) : x.view_as(x);
  }

  at::Tensor attention(const at::Tensor& x, const std::optional<at::Tensor>& starts,
                       KeyValueCache* cache = nullptr) const {
    const auto heads = [&] { return attention_->heads(x, attention_norm_.get()); };
    if (!has_piece(BlockPiece::Heads)) {
      return in_piece(BlockPiece::Attention,
                      [&] { return attention_->forward(heads(), starts, cache); });
    }
    Tensors made = in_piece(BlockPiece::Heads, heads);
    return in_piece(BlockPiece::Attention,
                    [&] { return attention_->forward(std::move(made), starts, cache); });
  }

  at::Tensor behind(const at::Tensor& x, at::Tensor attention) const {
    at::Tensor added = to_add(std::move(attention), norm_behind_attention_);
    const Tensors attended = in_piece(BlockPiece::Mlp, [&] {
      return mlp_->forward_of_sum(x, std::move(added), mlp_norm_.get());
    });
    return with_mlp(attended[0], attended[1]);
  }

  // x with the attention, and what the feed-forward part gets of it.
  Tensors with_norm_for_mlp(const at::Tensor& x, at::Tensor attention) const {
    at::Tensor added = to_add(std::move(attention), norm_behind_attention_);
    if (mlp_norm_) return mlp_norm_->forward_of_sum(x, std::move(added));
    const at::Tensor sum = x + added;
    return {sum, normed(mlp_norm_, sum)};
  }
  at::Tensor with_mlp(const at::Tensor& x, const at::Tensor& mlp) const {
    return x + to_add(mlp, norm_behind_mlp_);
  }
  // What a part of the block adds to x.
  at::Tensor to_add(at::Tensor part, const NormPointer& norm) const {
    if (norm) part = norm->forward(part);
    return residual_scale_ == 1.0 ? part : part * residual_scale_;
  }

  // Adapters drop the same inputs as where ranks share the block.
  template <class Forward>
  decltype(std::declval<const Forward&>()()) in_piece(BlockPiece piece,
                                                      const Forward& forward) const {
    const PieceScope draws(std::ranges::find(pieces_, piece) - pieces_.begin());
    return forward();
  }

  std::vector<BlockPiece> pieces_;
  bool knows_documents_;
  double residual_scale_;
  NormPointer attention_norm_;  // Null, as the other norms, where there is none.
  std::shared_ptr<DecoderAttention> attention_;
  NormPointer norm_behind_attention_;
  NormPointer mlp_norm_;
  std::shared_ptr<DecoderFeedForward> mlp_;
  NormPointer norm_behind_mlp_;
};

class DecoderNorm : public DecoderLayer {
 public:
  DecoderNorm(const DecoderOptions& options, const Making& making)
      : norm_(std::make_shared<NormModule>(options, making, options.hidden)) {
    for (const auto& each : norm_->named_parameters()) register_parameter(each.key(), each.value());
  }
  at::Tensor forward(const at::Tensor& x) override { return norm_->forward(x); }
  // Drops the documents: nothing behind this layer asks for them.
  Values forward_values(const Values& inputs) override { return forward(inputs.front()); }
  Values forward_piece(std::size_t /*piece*/, const Values& values) override {
    return forward(values.front());
  }

 private:
  std::shared_ptr<NormModule> norm_;
};

class DecoderHead : public DecoderLayer {
 public:
  DecoderHead(const DecoderOptions& options, const Making& making)
      : vocabulary_(options.vocabulary),
        divisor_(options.logit_divisor),
        cap_(options.logit_cap),
        blocks_(making.blocks),
        weight_(register_part("weight", making, {options.vocabulary, options.hidden},
                              {.dimension = 0})) {}
  at::Tensor forward(const at::Tensor& x) override {
    const Linear head{.weight = weight_, .bias = {}};
    at::Tensor logits =
        blocks_ ? linears_in_blocks(x, {head}, *blocks_).front() : linear_of(x, head);
    if (divisor_ != 1.0) logits = logits / divisor_;
    return cap_ ? (logits / *cap_).tanh() * *cap_ : logits;
  }
  // The first is there for what comes behind it.
  Values forward_piece(std::size_t piece, const Values& values) override {
    return piece == 0 ? values : forward_values(values);
  }
  at::Tensor continue_together(std::int64_t /*past*/, KeyValueCache& /*cache*/, const at::Tensor& x,
                               const PutTogether& ranks) override {
    return ranks.gather(forward(x), /*dimension=*/2, vocabulary_);
  }

 private:
  std::int64_t vocabulary_;
  double divisor_;
  std::optional<double> cap_;
  std::optional<std::int64_t> blocks_;
  at::Tensor weight_;
};

// A layer of the model, and how it is made.
struct Part {
  std::string name;
  std::string type;
  std::function<std::shared_ptr<Layer>(const DecoderOptions&, const Making&)> make;
  exchange::Pieces pieces = {};  // Pieces without their parameters.
};

template <class LayerType, class... Args>
std::shared_ptr<Layer> make_layer(const DecoderOptions& options, const Making& making,
                                  const Args&... args) {
  if (is_gpt2(options)) {
    return std::make_shared<LayerType>(options, making.as_they_come(), args...);
  }
  check_bits(options, making);
  return std::make_shared<LayerType>(options, making, args...);
}

std::vector<Part> parts_of(const DecoderOptions& options) {
  const bool gpt2 = is_gpt2(options);
  std::vector<Part> parts = {{gpt2 ? "transformer" : "model.embed_tokens", "DecoderEmbedding",
                              make_layer<DecoderEmbedding>, pieces_of_embedding(options)}};
  for (std::int64_t i = 0; i < options.layers; ++i) {
    parts.push_back({penstock::str(gpt2 ? "transformer.h." : "model.layers.", i), "DecoderBlock",
                     [i](const DecoderOptions& of, const Making& making) {
                       return make_layer<DecoderBlock>(of, making, attention_of(of, i));
                     },
                     pieces_of_block(options)});
  }
  parts.push_back({gpt2 ? "transformer.ln_f" : "model.norm", "DecoderNorm", make_layer<DecoderNorm>,
                   pieces_of_norm(options)});
  parts.push_back({"lm_head", "DecoderHead", make_layer<DecoderHead>, pieces_of_head(options)});
  return parts;
}

std::string embedding_of(const DecoderOptions& options) {
  return is_gpt2(options) ? "wte.weight" : "weight";
}

// The options of a layer, whose adapters know where they are.
DecoderOptions of_layer(DecoderOptions options, const Part& part) {
  if (options.adapter) options.adapter->layer = part.name;
  return options;
}

// The parameters' shapes, by their names in the layer; found in a layer whose tensors have no
// memory.
std::vector<DecoderParameter> shapes_of(const DecoderOptions& options, const Part& part) {
  std::vector<DecoderParameter> parameters;
  const auto layer = part.make(of_layer(options, part), {.device = at::kMeta});
  for (const auto& each : layer->named_parameters()) {
    parameters.push_back({each.key(), each.value().sizes().vec()});
  }
  return parameters;
}

// Fills the adapters behind all others, so that random weights are those of a model without
// adapters.  Modules that are trained whole may be filled anew.
void fill_adapters(Layer& layer, const std::string& name, const FillParameter& fill,
                   const DecoderOptions& options) {
  const Cuts cuts = cuts_in(layer);
  auto parameters = layer.named_parameters();
  for (auto& each : parameters) {
    const std::string full = penstock::str(name, ".", each.key());
    if (!options.adapter || !options.adapter->trains(full)) continue;
    const std::size_t lengths = each.key().find(penstock::str(".", kAdapterLengths, "."));
    if (lengths != std::string::npos) {
      const at::Tensor& weight = parameters[each.key().substr(0, lengths) + ".weight"];
      each.value().copy_(at::linalg_vector_norm(is_gpt2(options) ? weight.t() : weight, 2, {1}));
    }
    fill(full, each.value(), cut_of(cuts, each.key()));
    each.value().requires_grad_(true);
  }
}

partition::LayerMeta meta_of(const DecoderOptions& options, const Part& part) {
  partition::LayerMeta meta{.name = part.name, .type = part.type, .pieces = part.pieces};
  if (!is_gpt2(options) && !part.pieces.empty()) meta.sums = exchange::Sums::InBlocks;
  for (const DecoderParameter& each : shapes_of(options, part)) {
    meta.parameters += c10::multiply_integers(each.shape);
    if (meta.pieces.empty()) continue;
    const bool is_block = part.type == "DecoderBlock";
    const std::size_t piece =
        is_block ? piece_of_block(options, each.name) : meta.pieces.size() - 1;
    meta.pieces[piece].parameters.push_back(each.name);
  }
  return meta;
}

}  // namespace

at::Tensor DecoderLayer::continue_behind(std::int64_t /*past*/, KeyValueCache& /*cache*/,
                                         const at::Tensor& x) {
  return forward(x);
}

at::Tensor DecoderLayer::continue_together(std::int64_t past, KeyValueCache& cache,
                                           const at::Tensor& x, const PutTogether& /*ranks*/) {
  return continue_behind(past, cache, x);
}

std::optional<std::int64_t> tokens_with_documents_apart(const DecoderOptions& options) {
  std::optional<std::int64_t> limit;
  for (const auto* const rotary : {&options.rotary, &options.rotary_of_windows}) {
    if (!*rotary || !depends_on_length(**rotary)) continue;
    limit = std::min(limit.value_or((*rotary)->original_positions), (*rotary)->original_positions);
  }
  return limit;
}

FillParameter normal_parameters(double standard_deviation, double norm_offset) {
  return [=](const std::string& name, at::Tensor& parameter) {
    if (parameter.dim() > 1) {
      parameter.normal_(0.0, standard_deviation);
    } else {
      parameter.fill_(name.ends_with("bias") ? 0.0 : 1.0 - norm_offset);
    }
  };
}

std::vector<LayerSpec> decoder_layers(const DecoderOptions& options, FillParameter fill,
                                      FillParameter fill_of_adapters) {
  check_adapters(options);
  const std::vector<Part> parts = parts_of(options);
  const std::string embedding = penstock::str(parts.front().name, ".", embedding_of(options));
  std::vector<LayerSpec> layers;
  for (const Part& part : parts) {
    const bool is_tied_head = options.tie_embeddings && part.name == parts.back().name;
    layers.push_back({meta_of(options, part), [=](const Making& making) {
                        const auto layer = part.make(of_layer(options, part), making);
                        const Cuts cuts = cuts_in(*layer);
                        const torch::NoGradGuard no_grad;
                        for (auto& each : layer->named_parameters()) {
                          const std::string name = penstock::str(part.name, ".", each.key());
                          if (options.adapter) {
                            each.value().requires_grad_(options.adapter->trains(name));
                          }
                          if (is_of_adapter(each.key())) continue;
                          fill(is_tied_head ? embedding : name, each.value(),
                               cut_of(cuts, each.key()));
                        }
                        fill_adapters(*layer, part.name, fill_of_adapters, options);
                        return layer;
                      }});
  }
  if (options.tie_embeddings) {
    layers.front() = TiedLayerSpec("embedding", layers.front(), {embedding_of(options)});
    layers.back() = TiedLayerSpec("embedding", layers.back(), {"weight"});
  }
  return layers;
}

std::vector<std::string> linear_names(const DecoderOptions& options) {
  std::vector<std::string> names;
  DecoderOptions plain = options;
  plain.adapter.reset();
  for (const Part& part : parts_of(plain)) {
    if (part.type != "DecoderBlock") continue;
    for (const DecoderParameter& each : shapes_of(plain, part)) {
      const std::vector<std::string> words = penstock::split(each.name, '.');
      if (each.shape.size() != 2 || words.size() < 2) continue;
      const std::string& name = words[words.size() - 2];
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    break;  // Blocks are alike.
  }
  return names;
}

std::vector<DecoderParameter> decoder_parameters(const DecoderOptions& options) {
  std::vector<DecoderParameter> all;
  const std::vector<Part> parts = parts_of(options);
  for (const Part& part : parts) {
    if (options.tie_embeddings && part.name == parts.back().name) continue;
    for (DecoderParameter& each : shapes_of(options, part)) {
      all.push_back({penstock::str(part.name, ".", each.name), std::move(each.shape)});
    }
  }
  return all;
}

}  // namespace penstock::nn
