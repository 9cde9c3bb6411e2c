// Passes: Schedule -> Schedule, a file each.
//
// They turn a compute order into the program that ranks really run.  None of them checks: verify
// does, before and after.
#pragma once
#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// REDUCE_GRAD of a stage right after its last B or W, unless the schedule has one for it already;
// a forward-only schedule is unchanged.
Schedule add_reduce_gradients(Schedule schedule);

// SEND right after the action that makes the value; RECV `lookahead` compute actions before the one
// that needs it, so that a transfer runs while its receiver computes.  Neighbouring stages on one
// rank exchange nothing.  Around an overlapped pair, both RECVs come before and both SENDs after.
// REQUIRES: a compute order that verifies; lookahead >= 0.
Schedule add_send_recv(const Schedule& schedule, std::int32_t lookahead = 4);

// What penstock runs: both passes in turn.
Schedule lower_communication(const Schedule& schedule);

}  // namespace penstock::schedule
