// Passes: Schedule -> Schedule, a file each.
//
// They turn a compute order into the program that ranks really run.  None of them checks: verify
// does, before and after.
#pragma once
#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

enum class Reduction : std::uint8_t {
  OfAll,   // One REDUCE_GRAD per stage, right after its last B or W.
  OfEach,  // One per stage and microbatch, right after each B or W.
};
// Adds them to stages that have no REDUCE_GRAD yet; a forward-only schedule is unchanged.
// REQUIRES: stages in range.
Schedule add_reduce_gradients(Schedule schedule, Reduction reduction = Reduction::OfAll);

// SEND right after the action that makes the value; RECV `lookahead` compute actions before the one
// that needs it, so that a transfer runs while its receiver computes.  Neighbouring stages on one
// rank exchange nothing.  Around an overlapped pair, both RECVs come before and both SENDs after.
// REQUIRES: a compute order that verifies; lookahead >= 0.
Schedule add_send_recv(const Schedule& schedule, std::int32_t lookahead = 4);

// What penstock runs: both passes in turn.
Schedule lower_communication(const Schedule& schedule);

}  // namespace penstock::schedule
