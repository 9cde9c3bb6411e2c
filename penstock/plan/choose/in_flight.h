// How many microbatches a program's ranks have in flight at most, and where its stages are.
//
// Bounds of a layout's memory and time are made of it: memory_bound.h, time_bound.h.  It is read
// off the order of computations, without messages and without a proof, which is a small part of
// what a simulation costs.  Knows no layers.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/schedule/schedule.h"

namespace penstock::choose {

// The backwards that a program has.
enum class Backwards : std::uint8_t { Whole, Halves, Both };

struct InFlight {
  struct OfRank {
    std::vector<StageId> stages;  // Rising.
    // Numbers of microbatches at one time, by stage of these.  Of all such rows those that no other
    // one reaches in every number.
    std::vector<std::vector<std::int32_t>> most;
  };

  std::vector<Rank> homes;  // Ranks by stage.
  std::vector<OfRank> ranks;
  Backwards backwards = Backwards::Whole;
  bool has_pairs = false;  // Pairs hide exchanges inside of layers.
};

// A microbatch is in flight on a stage from the end of its F to the start of its B or I.
// REQUIRES: an order of one replica that verifies.
InFlight in_flight(const schedule::Schedule& order);

}  // namespace penstock::choose
