#include <algorithm>
#include <deque>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/plan/schedule/passes/messages.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/schedule/passes/turns.h"

namespace penstock::schedule {
namespace {

void pair_all(Program& program) {
  for (std::size_t i = 0; i + 1 < program.size(); ++i) {
    const Action& next = program[i + 1];
    if (program[i].op == Op::Forward && next.op == Op::Backward &&
        program[i].microbatch != next.microbatch) {
      program[i].overlaps_next = true;
    }
    if (program[i].overlaps_next) ++i;
  }
}

// Runs the programs with every pair that could be one.  When all ranks wait, the pair is given up
// that has waited longest of those whose F could run alone.
class Pairing {
 public:
  explicit Pairing(const Schedule& order)
      : order_(order),
        paired_(order),
        messages_(order),
        turns_(order.programs.size()),
        made_(messages_.count(), false),
        next_(order.programs.size(), 0) {
    for (Program& program : paired_.programs) pair_all(program);
  }

  Schedule run() {
    const auto take_turn = [&](std::size_t rank) { return turn(rank); };
    for (turns_.run(take_turn); give_one_up();) turns_.run(take_turn);
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      const Program& program = order_.programs[rank];
      PENSTOCK_CHECK(next_[rank] == program.size(), "rank ", rank, " never runs ",
                     program[next_[rank]]);
    }
    return std::move(paired_);
  }

 private:
  struct Place {
    std::size_t rank = 0;
    std::size_t step = 0;
  };

  Turns::Outcome turn(std::size_t rank) {
    const Program& program = paired_.programs[rank];
    const std::size_t step = next_[rank];
    if (step == program.size()) return Turns::Outcome::Over;
    const auto unit = unit_at(program, step);
    if (!std::ranges::all_of(unit, [&](const Action& action) { return can_run(action); })) {
      const bool ours = unit.size() == 2 && !order_.programs[rank][step].overlaps_next;
      if (ours && can_run(unit.front())) waiting_.push_back({rank, step});
      return Turns::Outcome::Waits;
    }
    for (const Action& action : unit) {
      const auto send = messages_.sent_after(action);
      if (!send) continue;
      made_[messages_.number(*send)] = true;
      turns_.wake(messages_.peer_of(*send));
    }
    next_[rank] += unit.size();
    return Turns::Outcome::Again;
  }

  bool can_run(const Action& action) const {
    const auto receive = messages_.received_before(action);
    return !receive || made_[messages_.number(*receive)];
  }

  bool give_one_up() {
    while (!waiting_.empty()) {
      const Place place = waiting_.front();
      waiting_.pop_front();
      if (next_[place.rank] != place.step) continue;  // It ran meanwhile.
      paired_.programs[place.rank][place.step].overlaps_next = false;
      turns_.wake(place.rank);
      return true;
    }
    return false;
  }

  const Schedule& order_;
  Schedule paired_;
  Messages messages_;
  Turns turns_;
  std::vector<bool> made_;         // Messages that are made, by number.
  std::vector<std::size_t> next_;  // First action of each rank that has not run.
  std::deque<Place> waiting_;      // Pairs whose F could run alone, first come, first served.
};

}  // namespace

Schedule overlap_pairs(const Schedule& order) { return Pairing(order).run(); }

}  // namespace penstock::schedule
