// The exchanges that ranks which share a stage's layers come to in a pass over it, in their order.
//
// Some of a backward start ahead of what is computed beside them, and are awaited behind it.
// Within an overlapped pair, the pair's other pass runs before most of them are awaited
// (runtime/execute/braid.h).
// They follow from the layers' pieces and from what is computed again.  The proof of a whole mesh
// goes by them (exchange_proof.h), and so does who looks at them before a run.  The stage runs
// these and no others: tests/train/planned_exchanges_test.cpp.  Knows no schedule and no ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/plan/partition/layer_meta.h"
#include "penstock/plan/partition/segment_ranges.h"

namespace penstock::lower {

// What a rank computes between the start of an exchange and the place where it awaits it.
enum class Beside : std::uint8_t {
  Nothing,
  Backward,  // The backward of the part behind: for what is gathered again.
  Weights,   // The weights' gradients of the part behind, in a B: for gradients of its inputs.
};

// When a rank awaits an exchange that it has started.
enum class Awaited : std::uint8_t {
  Aside,    // It does so before the next one starts.  A pair's other pass runs first.
  Later,    // Together with one that it starts later.
  InPlace,  // It does so at once, and no other pass runs: see braid.h.
};

struct PassExchange {
  std::string name;  // "the all-gather behind piece 0 of layer "fc"".
  Beside beside = Beside::Nothing;
  Awaited awaited = Awaited::Aside;

  friend bool operator==(const PassExchange&, const PassExchange&) = default;
};
// Exchanges of a pass, in the order in which they start.
using PassExchanges = std::vector<PassExchange>;

struct StageExchanges {
  PassExchanges forward;
  // Exchanges of a B, or of an I.  Those of gradients that no layer before wants are left out in a
  // run, on all ranks alike.
  PassExchanges backward;
  // What comes behind a B, or a W: sums of gradients, where they are invariant.  In place.
  PassExchanges weights = {};
};

// Layers [range.first, range.end) of each of the stage's ranges, and behind them a loss in pieces,
// if there is one.
StageExchanges exchanges_of(const partition::ModelMeta& model,
                            const std::vector<partition::SegmentRange>& ranges,
                            const exchange::Pieces& loss = {});

}  // namespace penstock::lower
