// The pieces of a layer that ranks share, and what holds between them.
//
// A layer says them (partition/layer_meta.h), stage/ runs them.  The values of a piece are those
// that the piece before gives, behind its exchanges; those of the first are the layer's inputs.  A
// layer without pieces computes the same on all ranks: what it takes and gives is invariant.
// From states follow, here alone: whether what a piece gives is what the next one takes, and which
// gradients of parameters have to be summed.  Knows no tensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/plan/exchange/exchange.h"

namespace penstock::exchange {

using HeldValues = std::vector<Held>;

// How pieces add up what ranks share: along the inner dimension of a product, tokens, a vocabulary.
enum class Sums : std::uint8_t {
  AsTheyCome,  // Added by each rank, then over ranks: bits depend on how many there are.
  InBlocks,    // Added in blocks, and a tree above them (nn::Making::blocks): they do not.
};
// Blocks of what all ranks share: at most as many may share it where bits depend on none of them.
inline constexpr std::int64_t kBlocks = 8;

struct Piece {
  HeldValues takes = {};
  HeldValues gives = {};              // What it computes, ahead of the exchanges.
  std::vector<Exchange> behind = {};  // Exchanges of what it gives, in this order.
  // The layer's parameters that it uses.
  std::vector<std::string> parameters = {};
};

using Pieces = std::vector<Piece>;

// What the next piece, or the next layer, gets.
HeldValues given_by(const Piece& piece);
// What a layer takes and gives; `values`: how many it is given, where it has no pieces.
HeldValues taken_by(const Pieces& pieces, std::size_t values);
HeldValues given_by(const Pieces& pieces, std::size_t values);

// Whether each rank has a summand of the gradients of parameters that are whole on every rank, or
// the whole on several: unless all that their piece gives is invariant.
bool sums_gradients(const Piece& piece);
// Whether the layer's parameter of that name has such gradients.
bool sums_gradient_of(const Pieces& pieces, const std::string& parameter);

// What is wrong with a layer's pieces, each as a sentence; nothing: they fit.
std::vector<std::string> objections(const Pieces& pieces);

// The exchanges that make values whole on every rank, so that they may be seen: of those that are
// parts.
std::vector<Exchange> whole_again(const HeldValues& values);

// A line for each piece: "piece 0: takes cut along dimension 1; gives ...; then all-gather of value
// 1".
std::string to_string(const Pieces& pieces);

}  // namespace penstock::exchange
