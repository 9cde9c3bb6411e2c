// Pieces of work of a round, run at once.
//
// search() and reorder() go in rounds of them.  Findings are in the order of the pieces, whichever
// is done first.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "penstock/plan/search/variant.h"

namespace penstock::search {

// Pieces of a round: how many cores can be busy.
inline constexpr std::size_t kPieces = 4;

struct Work {
  const Variant* variant = nullptr;  // It outlives the call.
  Piece piece;
};

// Runs pieces on as many cores as there are, at most kPieces.
std::vector<Finding> run_pieces(const std::vector<Work>& work);

// A seed for each piece of each round.
std::uint64_t seed_of_piece(std::uint64_t seed, std::int64_t round, std::size_t number);

}  // namespace penstock::search
