// Turns that run together, so that what one computes hides the exchanges inside of another.
//
// An F with a backward is an overlapped pair, an I with its own W is a whole backward, and the
// three in a row are a pair with a B.  Problem has one; clocks and list schedules ask it.  Knows no
// orders.  Units: those of simulate::Costs.
#pragma once
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "penstock/plan/search/chains.h"
#include "penstock/plan/search/turn.h"
#include "penstock/plan/simulate/costs.h"

namespace penstock::search {

// A turn, with its microbatch among those of its stage.
struct Turn {
  SearchStep step;
  std::size_t microbatch = 0;
};

// Whether a turn may be joined with the one right behind it, as far as their kinds tell.
inline bool may_join(SearchStep turn, SearchStep next) {
  if (turn.kind == Kind::Forward) return next.kind != Kind::Forward;
  return turn.kind == Kind::Input && next.kind == Kind::Weight && next.stage == turn.stage;
}

class Joined {
 public:
  // `chains` outlives it.
  Joined(const Chains& chains, const simulate::Costs& costs);

  // Turns are joined only where something is hidden by it.
  bool hides() const { return hides_; }
  // When joined turns end that begin at `start`.  REQUIRES: two or three that may be joined.
  double end(double start, std::span<const Turn> turns) const;
  // The least that the turn adds to its rank's time, joined or alone.  All turns of a microbatch
  // add up to no more than they take.
  double least_time(SearchStep turn, std::size_t microbatch) const {
    return least_[index(turn.kind)][chains_.cell(turn.stage, microbatch)];
  }

 private:
  using Passes = std::vector<simulate::PassCost>;  // Passes by cell.

  const Chains& chains_;
  bool hides_;
  double overlap_;
  std::array<Passes, kKinds> halves_;
  Passes whole_;
  std::array<std::vector<double>, kKinds> least_;
};

}  // namespace penstock::search
