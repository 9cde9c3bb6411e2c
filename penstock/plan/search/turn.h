// What a rank does next in a search's order: a turn, which names a stage and a kind of work.
//
// All parts of a search speak of turns.  Knows no costs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/schedule/action.h"

namespace penstock::search {

// The halves of a stage's work on a microbatch.  A search splits all backwards.
enum class Kind : std::uint8_t { Forward, Input, Weight };
inline constexpr std::size_t kKinds = 3;
inline constexpr Kind kEveryKind[kKinds] = {Kind::Forward, Kind::Input, Kind::Weight};

inline std::size_t index(Kind kind) { return static_cast<std::size_t>(kind); }

schedule::Op op_of(Kind kind);

// "The next F of stage 2": what a rank does, the microbatch being the next one of that stage and
// kind.
struct SearchStep {
  std::uint16_t stage = 0;
  Kind kind = Kind::Forward;
  // Runs together with the turn right behind it: an F with an I or a W, in an overlapped pair; an I
  // with its own W, as a whole backward.  An F, an I and its W in a row are a pair with a B.
  bool joined = false;
  friend bool operator==(const SearchStep&, const SearchStep&) = default;
};

// The turns of each rank, in the order in which it runs them.
using Order = std::vector<std::vector<SearchStep>>;

}  // namespace penstock::search
