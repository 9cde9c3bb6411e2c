#include "penstock/runtime/nn/decoder_pieces.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "penstock/runtime/nn/shared_tokens.h"

namespace penstock::nn {
namespace {

// These values, and with documents where they begin, which all ranks know.
exchange::HeldValues held(const DecoderOptions& options, exchange::HeldValues values) {
  if (options.document_end) values.push_back(exchange::kInvariant);
  return values;
}

bool norms_heads_together(const DecoderOptions& options) {
  return options.normalizes_queries_and_keys && options.normalizes_heads_together;
}

// x, queries, keys, values, and the sum of squares in that state.
exchange::HeldValues heads(const DecoderOptions& options, const exchange::Held& squares) {
  const exchange::Held queries = exchange::cut(2, options.heads * options.head_dim);
  const exchange::Held keys = exchange::cut(2, options.kv_heads * options.head_dim);
  return held(options, {kTokens, queries, keys, keys, squares});
}

BlockPiece kind_of(const std::string& parameter) {
  const auto is_of = [&](std::initializer_list<std::string_view> modules) {
    return std::ranges::any_of(modules, [&](auto each) { return parameter.starts_with(each); });
  };
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, parameter) != names.end();
  };
  if (is_of({"input_layernorm.", "ln_1."})) return BlockPiece::NormForAttention;
  if (is_of({"post_attention_layernorm.", "pre_feedforward_layernorm.", "ln_2."})) {
    return BlockPiece::NormForMlp;
  }
  if (is_of({"post_feedforward_layernorm."})) return BlockPiece::Sum;
  if (is_one_of({"self_attn.o_proj.bias", "attn.c_proj.bias"})) return BlockPiece::NormForMlp;
  if (is_of({"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."})) {
    return BlockPiece::Heads;
  }
  if (is_of({"self_attn.", "attn."})) return BlockPiece::Attention;
  const bool is_behind = is_one_of({"mlp.down_proj.bias", "mlp.c_proj.bias"});
  return is_behind ? BlockPiece::Sum : BlockPiece::Mlp;
}

}  // namespace

std::vector<BlockPiece> block_pieces(const DecoderOptions& options) {
  std::vector<BlockPiece> pieces = {BlockPiece::NormForAttention, BlockPiece::Attention,
                                    BlockPiece::NormForMlp, BlockPiece::Mlp, BlockPiece::Sum};
  if (norms_heads_together(options)) pieces.insert(pieces.begin() + 1, BlockPiece::Heads);
  return pieces;
}

exchange::Pieces pieces_of_embedding(const DecoderOptions& options) {
  return {{.takes = {exchange::kInvariant},
           .gives = held(options, {exchange::kPartial}),
           .behind = {sums(0)}}};
}

exchange::Pieces pieces_of_block(const DecoderOptions& options) {
  const auto one = held(options, {kTokens}), two = held(options, {kTokens, kTokens});
  const auto whole = held(options, {kTokens, exchange::kReplicated});
  const auto summand = held(options, {kTokens, exchange::kPartial});
  exchange::Pieces pieces = {{.takes = one, .gives = two, .behind = {gathers(1)}},
                             {.takes = whole, .gives = summand, .behind = {sums(1)}},
                             {.takes = two, .gives = two, .behind = {gathers(1)}},
                             {.takes = whole, .gives = summand, .behind = {sums(1)}},
                             {.takes = two, .gives = one}};
  if (!norms_heads_together(options)) return pieces;
  constexpr std::size_t kSquares = 4;
  pieces[1].takes = heads(options, exchange::kReplicated);
  pieces.insert(pieces.begin() + 1, {.takes = whole,
                                     .gives = heads(options, exchange::kPartial),
                                     .behind = {{.value = kSquares,
                                                 .before = exchange::kPartial,
                                                 .after = exchange::kReplicated}}});
  return pieces;
}

exchange::Pieces pieces_of_norm(const DecoderOptions& options) {
  return {{.takes = held(options, {kTokens}), .gives = {kTokens}}};
}

exchange::Pieces pieces_of_head(const DecoderOptions& options) {
  return {{.takes = {kTokens}, .gives = {kTokens}, .behind = {gathers(0)}},
          {.takes = {exchange::kReplicated},
           .gives = {exchange::cut(/*dimension=*/2, options.vocabulary)}}};
}

std::size_t piece_of_block(const DecoderOptions& options, const std::string& parameter) {
  const std::vector<BlockPiece> pieces = block_pieces(options);
  const BlockPiece kind = kind_of(parameter);
  auto found = std::ranges::find(pieces, kind);
  if (found == pieces.end()) found = std::ranges::find(pieces, BlockPiece::Attention);
  return static_cast<std::size_t>(found - pieces.begin());
}

}  // namespace penstock::nn
