// The schedules of torch.distributed.pipelining as torch shows and runs them.
//
// For those who compare with torch, or show its tables.  Idle slots are no part of a schedule: when
// an action runs is for simulate to say, and torch's tables are not always what it would say.
#pragma once
#include <string_view>

#include "penstock/plan/schedule/timetable.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

// Whether torch has the schedule of that name; it has none that nobody has.
bool torch_has(std::string_view name);

// The pipeline_order of torch's schedule.  ScheduleGPipe and Schedule1F1B have their REDUCE_GRAD at
// the end, as there.
// Throws: ScheduleError as make_schedule, and for a schedule that torch does not have.
// Source: torch.distributed.pipelining 2.13; but Schedule1F1B is in the order that torch runs.
Timetable torch_timetable(std::string_view name, Sizes sizes);

// What its ranks run.  ScheduleGPipe and Schedule1F1B are loops there, without UNSHARD, each RECV
// right before its use; of every other schedule of the registry, what lower_as_torch() makes.
// Throws: ScheduleError as make_schedule.
Schedule torch_program(std::string_view name, const Sizes& sizes);

}  // namespace penstock::schedule
