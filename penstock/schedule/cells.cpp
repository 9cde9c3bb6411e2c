#include "penstock/schedule/cells.h"

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule {

Schedule parse_cells(const std::vector<std::vector<std::string>>& cells, const std::string& name) {
  Schedule schedule{.name = name};
  for (std::size_t rank = 0; rank < cells.size(); ++rank) {
    Program& program = schedule.programs.emplace_back();
    for (std::size_t i = 0; i < cells[rank].size(); ++i) {
      try {
        parse_cell(cells[rank][i], program);
      } catch (const ParseError& error) {
        throw ParseError(str(name, ": rank ", rank, " action ", i, ": ", error.message()),
                         error.notes());
      }
    }
  }
  if (std::ranges::all_of(schedule.programs, &Program::empty)) {
    throw ParseError(name + ": no actions; expected the actions of each rank");
  }
  set_sizes_from_programs(schedule);
  return schedule;
}

}  // namespace penstock::schedule
