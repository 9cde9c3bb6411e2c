// The windows in which turns may start, in any order that is through at a given time, as far as can
// be seen.
//
// Every rank narrows the windows of its turns (rank_states.h).  A turn's window narrows that of the
// turn on another rank that takes what it makes, until nothing changes.  What is left out, no order
// that is through in time does.  Where a window is empty, or a rank has no way left, there is no
// such order.  What is lost: a rank does not see that two windows of another rank depend on each
// other.
// Source: constraint propagation for job shops: Baptiste, Le Pape and Nuijten, Constraint-Based
// Scheduling, 2001.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "penstock/plan/search/problem.h"
#include "penstock/plan/search/rank_states.h"

namespace penstock::search {

// All orders of a problem: the ways of each rank, and who waits for whom.
struct Ways {
  // The turn that takes what a turn makes, or the one that makes what it takes.
  struct Partner {
    TurnId turn = 0;
    std::uint32_t rank = 0;
    double after = 0.0;  // Time from the start of the maker to that of the taker.
  };

  // Absent where a rank has more than its share of `steps_max` steps.
  // REQUIRES: all microbatches cost the same.  `problem` must outlive this.
  static std::optional<Ways> of(const Problem& problem, std::size_t steps_max);

  const Problem* problem = nullptr;
  std::vector<RankStates> ranks;
  std::vector<SearchStep> turns;               // Turns by id.
  std::vector<double> times;                   // Times by id.
  std::vector<std::optional<Partner>> takers;  // Partners by id.
  std::vector<std::optional<Partner>> makers;
};

// What narrowing may cost, and has cost.
struct Labour {
  std::int64_t steps = 0;  // Looked at so far.
  std::function<bool()> stop = [] { return false; };
  Scratch scratch = {};
};

class Windows {
 public:
  // `ways` must outlive this.
  Windows(const Ways& ways, double end);

  // False: no order is in time.  True says nothing, and is also the answer to `stop`.
  bool narrow_all(Labour& labour);

  const Window& of(TurnId turn) const { return windows_[turn]; }
  // Steps of a rank that are on some way which is left.
  const std::vector<Step>& steps(std::size_t rank) const { return steps_[rank]; }
  std::size_t steps() const;  // Steps of all ranks.
  // Keeps, of the steps from one state, the one that leads to `to`; drop() keeps all others.
  void keep(std::size_t rank, const Step& step);
  void drop(std::size_t rank, const Step& step);

 private:
  bool hand_on(std::size_t rank);
  bool hand_on(TurnId turn);

  const Ways* ways_;
  double slack_;
  std::vector<Window> windows_;  // Windows by turn.
  std::vector<std::vector<Step>> steps_;
  std::vector<char> is_due_;  // True of ranks whose windows changed.
};

}  // namespace penstock::search
