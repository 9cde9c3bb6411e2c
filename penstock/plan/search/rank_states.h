// All orders of one rank at once: what it may be through with, and how it goes on from there.
//
// A state says how many turns of each stage and kind the rank has done; a step is one more turn.
// Turns of a stage and kind keep the order of their microbatches.  So a rank of one stage and 8
// microbatches has 165 states, and a memory limit leaves fewer.  Stages whose W are alike share
// them: which one is next makes no difference.  Every order of the rank is a way through its
// states, and every way is an order that fits the memory.
//
// narrow() is given when each turn may start.  It finds the steps that are on a way in time, and
// what that says of the turns' starts: all that a single rank can tell.
// Source: dynamic programming over subsets (Held and Karp, 1962), which the fixed order within a
// stage makes small; it finds all that edge finding does (Carlier and Pinson, 1989), and more.
// Knows no other ranks: windows.h puts them together.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "penstock/plan/search/problem.h"

namespace penstock::search {

// A turn and its microbatch, in [0, 3 * cells).  Of stages that share their W, the k-th of all of
// these W is the k-th one of the first stage's, the second one's, and so on.
using TurnId = std::uint32_t;
inline TurnId turn_id(const Chains& chains, Kind kind, std::size_t stage, std::size_t microbatch) {
  return static_cast<TurnId>(static_cast<std::size_t>(kind) * chains.cells() +
                             chains.cell(stage, microbatch));
}

// The times at which a turn may start.
struct Window {
  double first = 0.0;
  double last = 0.0;
};

struct Step {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  TurnId turn = 0;
};

class RankStates {
 public:
  // Absent where there are more than `steps_max` steps.
  // REQUIRES: all microbatches cost the same.
  static std::optional<RankStates> of(const Problem& problem, std::size_t rank,
                                      std::size_t steps_max);

  const std::vector<Step>& steps() const { return steps_; }
  std::size_t count() const { return count_; }  // State 0 is the first one, count() - 1 the last.

 private:
  std::vector<Step> steps_;  // Sorted by state; a step leads to a later state.
  std::size_t count_ = 0;
};

// What narrow() works in.
struct Scratch {
  std::vector<double> reached;  // Earliest time of each state.
  std::vector<double> left;     // Latest time of each state.
  std::vector<Window> found;    // Windows by turn.
};

// Drops the steps that are on no way with all turns in their windows.  Narrows the windows to the
// starts that are on some way.  False: there is no way.
bool narrow(std::size_t states, std::vector<Step>& steps, std::span<const double> times,
            double slack, std::vector<Window>& windows, Scratch& scratch);

}  // namespace penstock::search
