// A schedule laid out in slots of equal length: which rank does what at which step, and where it is
// idle.
//
// CSV files are such tables: a row per rank, a column per slot, an empty cell where the rank does
// nothing; torch.distributed.pipelining calls it pipeline_order.  parse_timetable() and the passes
// that align schedules make it.  Everything else works on the schedule inside: when an action
// really runs is not known here (see simulate).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// Invariants: as many rows of slots as programs, as many slots in a row as actions; slots rise, but
// for the two of an overlapped pair, which share one; a row is longer than its last slot.
struct Timetable {
  Schedule schedule;
  std::vector<std::vector<std::int32_t>> action_slots;  // Slots by rank, then by action.
  std::vector<std::int32_t> lengths;                    // Slots of each rank, idle ones included.
  friend bool operator==(const Timetable&, const Timetable&) = default;
};

// The schedule without idle slots: each action in the slot behind the one before.
// Law: remove_idle_slots(pack(s)) == s.
Timetable pack(Schedule schedule);

// The pass that drops idle slots.
Schedule remove_idle_slots(Timetable table);

// Law: parse_timetable(to_csv(t), n) == t, for a t that parse_csv could read, without a row of one
// slot that is idle, and without a last row of none.
std::string to_csv(const Timetable& table);

// Throws: ParseError as parse_csv.
Timetable parse_timetable(std::string_view text, const std::string& name,
                          FileFormat format = FileFormat::ComputeComms);

}  // namespace penstock::schedule
