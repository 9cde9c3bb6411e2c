#include <utility>

#include "penstock/plan/schedule/passes/messages.h"
#include "penstock/plan/schedule/passes/passes.h"

namespace penstock::schedule {

Schedule add_send_recv_at_use(Schedule schedule) {
  const Messages messages(schedule);
  for (Program& program : schedule.programs) {
    Program result;
    result.reserve(2 * program.size());
    for (std::size_t i = 0; i < program.size();) {
      const auto unit = unit_at(program, i);
      for (const Action& action : unit) {
        if (const auto receive = messages.received_before(action)) result.push_back(*receive);
      }
      result.insert(result.end(), unit.begin(), unit.end());
      for (const Action& action : unit) {
        if (const auto send = messages.sent_after(action)) result.push_back(*send);
      }
      i += unit.size();
    }
    program = std::move(result);
  }
  return schedule;
}

}  // namespace penstock::schedule
