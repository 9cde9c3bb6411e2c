#include "penstock/plan/schedule/cells.h"

#include <algorithm>
#include <cstdint>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule {

namespace {

using Cells = std::vector<std::vector<std::string>>;

enum class Empty : std::uint8_t { IsIdle, IsAnError };

Timetable parse(const Cells& cells, const std::string& name, Empty empty) {
  Timetable table{.schedule = {.name = name}};
  Schedule& schedule = table.schedule;
  for (std::size_t rank = 0; rank < cells.size(); ++rank) {
    Program& program = schedule.programs.emplace_back();
    auto& slots = table.action_slots.emplace_back();
    for (std::size_t i = 0; i < cells[rank].size(); ++i) {
      if (cells[rank][i].empty() && empty == Empty::IsIdle) continue;
      try {
        parse_cell(cells[rank][i], program);
      } catch (const ParseError& error) {
        throw ParseError(str(name, ": rank ", rank, " action ", i, ": ", error.message()),
                         error.notes());
      }
      slots.resize(program.size(), static_cast<std::int32_t>(i));
    }
    table.lengths.push_back(static_cast<std::int32_t>(cells[rank].size()));
  }
  if (std::ranges::all_of(schedule.programs, &Program::empty)) {
    throw ParseError(name + ": no actions; expected the actions of each rank");
  }
  set_sizes_from_programs(schedule);
  return table;
}

}  // namespace

Schedule parse_cells(const Cells& cells, const std::string& name) {
  return remove_idle_slots(parse(cells, name, Empty::IsAnError));
}

Timetable parse_table(const Cells& cells, const std::string& name) {
  return parse(cells, name, Empty::IsIdle);
}

}  // namespace penstock::schedule
