#include <algorithm>
#include <optional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/messages.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/schedule/passes/turns.h"

namespace penstock::schedule {
namespace {

class Aligning {
 public:
  Aligning(Timetable table, Waits waits)
      : table_(std::move(table)),
        waits_(waits),
        messages_(table_.schedule),
        turns_(table_.schedule.programs.size()),
        there_(messages_.count(), kNotYet),
        next_(table_.schedule.programs.size(), 0),
        late_(next_.size(), 0) {}

  Timetable run() {
    turns_.run([&](std::size_t rank) { return turn(rank); });
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      const Program& program = table_.schedule.programs[rank];
      if (next_[rank] < program.size()) stuck_at(rank, program[next_[rank]]);
      table_.lengths[rank] += late_[rank];
    }
    return std::move(table_);
  }

 private:
  static constexpr std::int32_t kNotYet = -1;

  [[noreturn]] void stuck_at(std::size_t rank, const Action& action) const {
    PENSTOCK_CHECK(waits_ == Waits::OfReceives, "rank ", rank, " never runs ", action);
    throw ScheduleError(str(title(table_.schedule), ": rank ", rank, " waits at ", action, " for ",
                            other_end(action), " of rank ", messages_.peer_of(action),
                            ", which never comes when every RECV is waited for"));
  }

  // Lays out all that nothing is missing for.
  Turns::Outcome turn(std::size_t rank) {
    const Program& program = table_.schedule.programs[rank];
    while (next_[rank] < program.size()) {
      const auto unit = unit_at(program, next_[rank]);
      const auto earliest = earliest_slot(unit);
      if (!earliest) return Turns::Outcome::Waits;
      const auto slots = std::span(table_.action_slots[rank]).subspan(next_[rank], unit.size());
      late_[rank] = std::max(late_[rank], *earliest - slots.front());
      for (std::int32_t& slot : slots) slot += late_[rank];
      for (const Action& action : unit) hand_over(action, slots.front());
      next_[rank] += unit.size();
    }
    return Turns::Outcome::Over;
  }

  // Absent while something that it waits for has no slot.
  std::optional<std::int32_t> earliest_slot(std::span<const Action> unit) const {
    std::int32_t earliest = 0;
    for (const Action& action : unit) {
      const auto receive = received_for(action);
      if (!receive) continue;
      const std::int32_t there = there_[messages_.number(*receive)];
      if (there == kNotYet) return {};
      earliest = std::max(earliest, there);
    }
    return earliest;
  }

  // What the action waits for; a RECV, for itself.
  std::optional<Action> received_for(const Action& action) const {
    if (waits_ == Waits::OfReceives) {
      return is_receive(action.op) ? std::optional(action) : std::nullopt;
    }
    if (waits_ == Waits::OfForwards && action.op != Op::Forward) return {};
    return messages_.received_before(action);
  }

  // A message is there in the slot of its SEND, a value behind that of its maker.
  void hand_over(const Action& action, std::int32_t slot) {
    if (waits_ == Waits::OfReceives) {
      if (is_send(action.op)) arrive(action, slot);
    } else if (const auto send = messages_.sent_after(action)) {
      arrive(*send, slot + 1);
    }
  }

  void arrive(const Action& send, std::int32_t slot) {
    there_[messages_.number(send)] = slot;
    turns_.wake(messages_.peer_of(send));
  }

  Timetable table_;
  Waits waits_;
  Messages messages_;
  Turns turns_;
  std::vector<std::int32_t> there_;  // Slot from which each message is there, by its number.
  std::vector<std::size_t> next_;    // First action of each rank without its slot.
  std::vector<std::int32_t> late_;   // Slots that each rank has waited.
};

}  // namespace

Timetable align(Timetable table, Waits waits) { return Aligning(std::move(table), waits).run(); }

}  // namespace penstock::schedule
