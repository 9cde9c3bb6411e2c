// The pieces in which ranks that share a decoder's layers run these, and what they hand on.
//
// decoder.cpp describes its layers with them, and runs a block's pieces by their kinds.  Knows no
// tensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/plan/exchange/pieces.h"

namespace penstock::nn {

// What a block does between two exchanges.  Each takes x, of some tokens, and what the one before
// made; where documents are apart, also their begins.  Each gives the same.
enum class BlockPiece : std::uint8_t {
  NormForAttention,
  Heads,       // Queries, keys and values, where their norms need the squares of all heads.
  Attention,   // Mixed values; the heads, too, where these are no piece of their own.
  NormForMlp,  // Adds the attention to x.
  Mlp,
  Sum,  // Adds the feed-forward part.
};
std::vector<BlockPiece> block_pieces(const DecoderOptions& options);

// Pieces without their parameters.
exchange::Pieces pieces_of_embedding(const DecoderOptions& options);
exchange::Pieces pieces_of_block(const DecoderOptions& options);
exchange::Pieces pieces_of_norm(const DecoderOptions& options);
exchange::Pieces pieces_of_head(const DecoderOptions& options);

// The piece of a block, among block_pieces(), that uses a parameter.
std::size_t piece_of_block(const DecoderOptions& options, const std::string& parameter);

}  // namespace penstock::nn
