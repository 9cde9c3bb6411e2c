// Makes an order faster by small changes: simulated annealing over the orders of a problem.
//
// A change takes one rank's program and moves a turn of it to another place: out of a run of turns
// that the makespan consists of, near a wait between such runs, into a gap, anywhere; or it moves a
// row of turns of one stage and kind by one place.  So a W fills a gap, neighbours change places,
// an F waits at the memory limit, a stage shifts.  Where exchanges can be hidden, turns are joined
// and parted, too, and some in a row are paired anew; joined turns move together.  Each change is
// simulated.  One that makes the order slower is kept with a chance that falls while the run goes
// on. Memory is what verify::LiveActivations counts, in the order of a rank's program. Source:
// Kirkpatrick, Gelatt and Vecchi, Science 220, 1983; that only changes at the edges of critical
// blocks can help alone: Brucker, Jurisch and Sievers, Discrete Applied Mathematics 49, 1994.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/plan/search/clock.h"
#include "penstock/plan/search/problem.h"
#include "penstock/plan/search/random.h"

namespace penstock::search {

// Whether the rank's turns keep to the problem's memory limit.
bool fits(const Problem& problem, const std::vector<SearchStep>& turns);

struct Solution {
  Order order;
  double makespan = kStuck;
  double cost = kStuck;  // Clock's: the makespan, and a little for ranks that end late.

  bool better_than(const Solution& other) const {
    return makespan != other.makespan ? makespan < other.makespan : cost < other.cost;
  }
};

struct Effort {
  std::uint64_t seed = 1;
  std::int64_t changes = 0;
  double heat = 0.0;    // How much slower an order may become at the start.
  double enough = 0.0;  // Stops at a makespan of this or less.
  std::function<bool()> stop = [] { return false; };  // Asked now and then.
};

class Repair {
 public:
  // `problem` must outlive this.
  explicit Repair(const Problem& problem);

  // The fastest order on the way, at least as fast as `start`.
  // REQUIRES: `start` is not stuck and fits.
  Solution run(const Order& start, const Effort& effort);

  // How many orders were simulated so far.
  std::int64_t simulated() const { return simulated_; }

 private:
  bool change(Random& random);
  void look_around();
  bool move_out_of_block(Random& random);
  bool move_near_wait(Random& random);
  bool fill_gap(Random& random);
  bool move_anywhere(Random& random);
  bool shift_row(Random& random);
  bool join_or_part(Random& random);
  bool pair_anew(Random& random);
  bool move(std::size_t rank, std::size_t from, std::size_t to);

  const Problem& problem_;
  Clock clock_;
  Order order_;
  std::size_t rank_ = 0;              // The rank that the last change is about.
  std::vector<SearchStep> trial_;     // The program that the change made for it.
  std::vector<Place> path_;           // The critical path.
  std::vector<Place> waits_on_path_;  // The turns of it that waited for another rank.
  std::vector<Place> waits_;          // All turns that waited while their rank was free.
  std::int64_t simulated_ = 0;
};

}  // namespace penstock::search
