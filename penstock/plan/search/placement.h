// The ranks of stages, for a search that may choose them.
//
// The forms that generators have are given; any other ones are found by their lower bounds.  Knows
// no orders.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/search/random.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/plan/simulate/lower_bounds.h"

namespace penstock::search {

enum class Placement : std::uint8_t {
  Loop,  // Round the ranks: stage s on rank s mod ranks.
  V,     // Runs to and fro, so that the hop between two passes of the ranks stays on its rank.
  Any,   // Any, with equally many stages on each rank.
};
inline constexpr Placement kPlacements[] = {Placement::Loop, Placement::V, Placement::Any};
// "loop", "v", "any"
std::string_view to_string(Placement placement);

// What is to be placed.
struct Stages {
  std::int32_t ranks = 1;
  std::int32_t per_rank = 1;
  std::int32_t microbatches = 1;
  simulate::Costs costs;                  // Costs of single stages.
  std::optional<double> memory_max = {};  // Limit on each rank's activations.
  std::vector<double> memory_of_ranks =
      {};  // Limits by rank, instead of that; empty: no rank has its own.

  std::vector<double> limits() const;  // Limits by rank; infinite: none.
};

std::vector<Rank> in_a_loop(const Stages& stages);
std::vector<Rank> to_and_fro(const Stages& stages);

// Up to `count` placements of which the lower bounds are the smallest, as far as some seconds of
// random exchanges show; none of those above.
std::vector<std::vector<Rank>> with_small_bounds(const Stages& stages, std::size_t count,
                                                 std::uint64_t seed);

// Every placement with equally many stages on each rank, whatever the ranks' names; absent where
// there are more than `most`, or links make ranks differ.
std::optional<std::vector<std::vector<Rank>>> all_placements(const Stages& stages,
                                                             std::size_t most);

// A backward of one piece may cost less than its halves.  A half then counts no more than its share
// of the whole, so that bounds hold for either.  Exchanges inside of layers count as hidden.
simulate::Costs of_halves(const Stages& stages);

// What no order with the stages on these ranks can beat.
std::vector<simulate::LowerBound> bounds_of(const Stages& stages,
                                            const std::vector<Rank>& rank_of_stage);

// What no order can beat wherever the stages are.
simulate::LowerBound bound_of_any(const Stages& stages);

}  // namespace penstock::search
