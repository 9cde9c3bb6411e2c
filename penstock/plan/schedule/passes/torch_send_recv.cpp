#include <utility>

#include "penstock/core/check.h"
#include "penstock/plan/schedule/passes/messages.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/schedule/passes/turns.h"

namespace penstock::schedule {
namespace {

class TorchPlacing {
 public:
  // `slots`: of the order's actions; null: there are no idle ones.
  explicit TorchPlacing(const Schedule& order, const std::vector<std::vector<std::int32_t>>* slots)
      : order_(order),
        slots_(slots),
        messages_(order),
        turns_(order.programs.size()),
        sent_(messages_.count(), false),
        next_(order.programs.size(), 0),
        slot_(order.programs.size(), 0),
        results_(order.programs.size()) {
    for (std::size_t rank = 0; rank < results_.size(); ++rank) {
      results_[rank].reserve(size_with_messages(order.programs[rank]));
    }
  }

  std::vector<Program> run() {
    turns_.run([&](std::size_t rank) { return turn(rank); });
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      const Program& program = order_.programs[rank];
      PENSTOCK_CHECK(next_[rank] == program.size(), "rank ", rank, " never runs ",
                     program[next_[rank]]);
    }
    return std::move(results_);
  }

 private:
  std::size_t size_with_messages(const Program& program) const {
    std::size_t size = program.size();
    for (const Action& action : program) {
      if (messages_.sent_after(action)) ++size;
      if (messages_.received_before(action)) ++size;
    }
    return size;
  }

  Turns::Outcome turn(std::size_t rank) {
    const Program& program = order_.programs[rank];
    if (next_[rank] == program.size()) return Turns::Outcome::Over;
    if (slots_ != nullptr && slot_[rank] < (*slots_)[rank][next_[rank]]) {
      ++slot_[rank];
      return Turns::Outcome::Again;
    }
    const auto unit = unit_at(program, next_[rank]);
    if (!can_run(unit)) return Turns::Outcome::Waits;
    for (const Action& action : unit) results_[rank].push_back(action);
    for (const Action& action : unit) {
      if (const auto send = messages_.sent_after(action)) exchange(*send, rank);
    }
    next_[rank] += unit.size();
    ++slot_[rank];
    return Turns::Outcome::Again;
  }

  bool can_run(std::span<const Action> unit) const {
    for (const Action& action : unit) {
      const auto receive = messages_.received_before(action);
      if (receive && !sent_[messages_.number(*receive)]) return false;
    }
    return true;
  }

  void exchange(const Action& send, std::size_t rank) {
    const std::size_t peer = messages_.peer_of(send);
    results_[rank].push_back(send);
    results_[peer].push_back(other_end(send));
    sent_[messages_.number(send)] = true;
    turns_.wake(peer);
  }

  const Schedule& order_;
  const std::vector<std::vector<std::int32_t>>* slots_;
  Messages messages_;
  Turns turns_;
  std::vector<bool> sent_;          // Messages that were sent, by number.
  std::vector<std::size_t> next_;   // First action of each rank that has not run.
  std::vector<std::int32_t> slot_;  // Slots of each rank that have had their turn.
  std::vector<Program> results_;
};

Schedule place(const Schedule& order, const std::vector<std::vector<std::int32_t>>* slots) {
  return {.name = order.name,
          .purpose = order.purpose,
          .stages = order.stages,
          .microbatches = order.microbatches,
          .replicas = order.replicas,
          .programs = TorchPlacing(order, slots).run()};
}

}  // namespace

Schedule add_send_recv_as_torch(const Schedule& order) { return place(order, nullptr); }

Schedule add_send_recv_as_torch(const Timetable& table) {
  return place(table.schedule, &table.action_slots);
}

}  // namespace penstock::schedule
