#include "penstock/plan/schedule/timetable.h"

#include <algorithm>
#include <utility>

namespace penstock::schedule {
namespace {

std::string to_row(const Program& program, const std::vector<std::int32_t>& slots,
                   std::int32_t length) {
  std::string row;
  std::int32_t slot = 0;
  for (std::size_t i = 0; i < program.size();) {
    const auto unit = unit_at(program, i);
    row.append(static_cast<std::size_t>(slots[i] - slot), ',');
    slot = slots[i];
    append_cell(row, unit);
    i += unit.size();
  }
  row.append(static_cast<std::size_t>(std::max(0, length - 1 - slot)), ',');
  return row;
}

}  // namespace

Timetable pack(Schedule schedule) {
  Timetable table{.schedule = std::move(schedule)};
  for (const Program& program : table.schedule.programs) {
    std::vector<std::int32_t> slots;
    slots.reserve(program.size());
    std::int32_t slot = 0;
    for (std::size_t i = 0; i < program.size(); ++slot) {
      const auto unit = unit_at(program, i);
      slots.insert(slots.end(), unit.size(), slot);
      i += unit.size();
    }
    table.action_slots.push_back(std::move(slots));
    table.lengths.push_back(slot);
  }
  return table;
}

Schedule remove_idle_slots(Timetable table) { return std::move(table.schedule); }

std::string to_csv(const Timetable& table) {
  std::string text;
  for (std::size_t rank = 0; rank < table.action_slots.size(); ++rank) {
    text +=
        to_row(table.schedule.programs[rank], table.action_slots[rank], table.lengths[rank]) + '\n';
  }
  return text;
}

}  // namespace penstock::schedule
