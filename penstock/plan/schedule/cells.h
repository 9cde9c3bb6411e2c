// Schedules from the cells of each rank, for those who have lists and no text.
//
// The Python package reads programs that are written in Python with it.  Knows no files.
#pragma once
#include <string>
#include <vector>

#include "penstock/plan/schedule/timetable.h"
#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// A cell is what one of CSV is: an action, or an overlapped pair.  Sizes and purpose are those of
// set_sizes_from_programs().
// Throws: ParseError with `name`, rank and number of the cell, and what was expected.
Schedule parse_cells(const std::vector<std::vector<std::string>>& cells, const std::string& name);

// The same, an empty cell being an idle slot.
Timetable parse_table(const std::vector<std::vector<std::string>>& cells, const std::string& name);

}  // namespace penstock::schedule
