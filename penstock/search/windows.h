// When each turn may start in any order that is through at a given time, as far as can be seen.
//
// Every rank narrows the windows of its turns (rank_states.h), and what a turn makes narrows the
// window of its taker on another rank, until nothing changes.  What is left out, no order that is
// through in time does.  Where a window is empty, or a rank has no way left, there is no such order.
// Source: constraint propagation for job shops: Baptiste, Le Pape and Nuijten, Constraint-Based
// Scheduling, 2001.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "penstock/search/clock.h"
#include "penstock/search/problem.h"
#include "penstock/search/rank_states.h"

namespace penstock::search {

class Windows {
 public:
  // `problem` and `ranks` must outlive this.
  Windows(const Problem& problem, const std::vector<RankStates>& ranks, double end);

  // False: no order is in time.
  bool narrow_all();

  const std::vector<Step>& steps(std::size_t rank) const { return steps_[rank]; }
  std::vector<Step>& change(std::size_t rank) {
    is_due_[rank] = true;
    return steps_[rank];
  }
  const Window& of(TurnId turn) const { return windows_[turn]; }

 private:
  struct Taker {
    TurnId turn = 0;
    double after = 0.0;  // From the start of the giver.
    std::uint32_t rank = 0;
    bool exists = false;
  };
  bool hand_on(std::size_t rank);
  void find_takers();

  const Problem* problem_;
  const std::vector<RankStates>* ranks_;
  double slack_;
  std::vector<double> times_;   // By turn.
  std::vector<Taker> takers_;   // By turn; of F and I.
  std::vector<Taker> givers_;
  std::vector<Window> windows_;
  std::vector<std::vector<Step>> steps_;
  std::vector<char> is_due_;
  Scratch scratch_;
};

}  // namespace penstock::search
