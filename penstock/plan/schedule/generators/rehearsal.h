// All ranks of a to-and-fro placement, run step by step while their programs are written.
//
// For schedules whose source has no rule for each rank: at every step, each rank that is free is
// asked what it runs next, and may look at what all ranks have done.  Keeps count of that; knows no
// schedule, and prefers nothing.  Cost: linear in the number of steps times ranks.
// Units: an F, an I and a W take one step, a B takes two.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/plan/schedule/generators/units.h"
#include "penstock/schedule/generators/rows.h"

namespace penstock::schedule {

// The next F, B or I of one of a rank's chunks, or the W of its oldest I that has none.
struct Move {
  Op op = Op::Forward;
  std::int32_t chunk = 0;  // Means nothing for a W.
};

class Rehearsal {
 public:
  // What `rank` runs next, out of what can_run(); nothing when it waits for a step.
  using Choose = std::function<std::optional<Move>(std::int32_t rank)>;

  // `backward` is what follows the forwards: Op::Backward, or Op::BackwardInput and a W each.
  // REQUIRES: backward is one of the two.
  Rehearsal(const Sizes& sizes, Op backward);
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  // Runs until every stage has run every microbatch; then the programs are in schedule().
  // REQUIRES: `choose` does not leave all ranks waiting.
  void run(const Choose& choose);

  const Sizes& sizes() const { return sizes_; }
  // Forwards of one of a rank's chunks that are over.
  std::int32_t forwards(std::int32_t rank, std::int32_t chunk) const {
    return forwards_[at(rank, chunk)];
  }
  // Bs or Is of one of a rank's chunks that are over.
  std::int32_t backwards(std::int32_t rank, std::int32_t chunk) const {
    return backwards_[at(rank, chunk)];
  }
  // Activations that the rank holds.
  std::int32_t alive(std::int32_t rank) const { return ranks_[index(rank)].alive; }
  // Whether the move is still to come, and its inputs were there before this step.
  bool can_run(std::int32_t rank, const Move& move) const;

  std::int32_t steps() const { return steps_; }
  // REQUIRES: run() is over.
  Schedule schedule(std::string name) &&;

 private:
  struct RankState {
    Row row;
    std::deque<Unit> inputs;  // Is whose W is still to come.
    std::int32_t alive = 0;
    std::optional<Move> running = {};
    std::int32_t steps_left = 0;  // Steps left of what is running.
  };

  static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }
  std::size_t at(std::int32_t rank, std::int32_t chunk) const {
    return index(rank * sizes_.stages_per_rank + chunk);
  }
  bool has_forward_input(std::int32_t rank, std::int32_t chunk) const;
  bool has_backward_input(std::int32_t rank, std::int32_t chunk) const;
  void begin(std::int32_t rank, const Move& move);
  void end(std::int32_t rank);

  Sizes sizes_;
  Op backward_;
  std::vector<RankState> ranks_;
  std::vector<std::int32_t> forwards_;  // Counts by rank and chunk.
  std::vector<std::int32_t> backwards_;
  std::int64_t left_;  // Actions, without the Ws whose I has not run.
  std::int32_t steps_ = 0;
};

}  // namespace penstock::schedule
