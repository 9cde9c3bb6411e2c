// Passes: Schedule -> Schedule, a file each.
//
// They turn a compute order into the program that ranks really run, or into another order of the
// same work.  None of them checks what it is given or makes: verify does, before and after.
// A compute order here is a schedule without SEND and RECV whose programs verify; each pass leaves
// its compute in the order that it had.
// REQUIRES, of all of them: stages and microbatches in range, at the other ends of messages too.
// Cost: linear in the number of actions.
#pragma once
#include <cstdint>
#include <optional>

#include "penstock/plan/schedule/timetable.h"
#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// Slots ------------------------------------------------------------------------------------------

enum class Waits : std::uint8_t {
  OfAll,       // Each F, B and I waits for what it needs of another rank.
  OfForwards,  // Fs only.
  OfReceives,  // Each RECV waits for its SEND, and may share its slot; nothing else waits.
};
// Moves actions to later slots, so that what they need of other ranks is made in an earlier one.
// Slots that are idle between two actions of a rank stay so.  align(pack(s)) has each action as
// early as slots of equal length allow.
// REQUIRES: a compute order; with Waits::OfReceives, a lowered schedule that verifies.
// Throws: ScheduleError, with Waits::OfReceives, for the first rank whose RECV waits forever.
Timetable align(Timetable table, Waits waits = Waits::OfAll);

// Weights ----------------------------------------------------------------------------------------

// Adds UNSHARD and RESHARD.  While a stage computes, the weights of the next `window` distinct
// stages of its rank are there, its own counted, and no others.  What is not among them is dropped,
// then what is missing is gathered.  An overlapped pair has both of its stages.
// REQUIRES: window >= 1.  Cost: the actions times the window.
// Source: torch.distributed.pipelining, whose window is 3.
Schedule add_unshard(Schedule schedule, std::int32_t window = 3);

enum class Reduction : std::uint8_t {
  OfAll,   // One REDUCE_GRAD per stage, right after its last B or W on a rank.
  OfEach,  // One per stage and microbatch, right after each B or W.
};
// Adds them to stages that have all their backwards and no REDUCE_GRAD yet; a forward-only schedule
// is unchanged.
Schedule add_reduce_gradients(Schedule schedule, Reduction reduction = Reduction::OfAll);

// Backwards --------------------------------------------------------------------------------------

// Makes each B that is not overlapped an I in its place and a W.  The W stands behind the I of the
// B that is `delay` such Bs of the rank later, or at the end.
// REQUIRES: compute actions only; delay >= 0.
Schedule split_backwards(Schedule order, std::int32_t delay = 0);

// Each I with its W right behind it becomes a B; of one stage only, where one is given.
// Law: fuse_backwards(split_backwards(s)) == s, for an s without such Is.
Schedule fuse_backwards(Schedule schedule, std::optional<StageId> only = {});

// Each F with a B of another microbatch right behind it becomes an overlapped pair.  A pair starts
// when both can, so that one may wait for the F of another: pairs that would wait for each other
// are given up.
// REQUIRES: a compute order.
Schedule overlap_pairs(const Schedule& order);

// Messages ---------------------------------------------------------------------------------------
//
// Stages of one rank exchange nothing.  A SEND stands right after the action that makes the value;
// around an overlapped pair, RECVs come before and SENDs after both.

// torch's placement: the ranks take turns, and when one sends, the RECV is added to what the other
// has so far.  So any two ranks agree on the order of the messages between them, both directions
// together.  The program runs even where messages of two ranks go through one queue.
// An idle slot takes a turn.
// REQUIRES: a compute order.
// Source: torch.distributed.pipelining.
Schedule add_send_recv_as_torch(const Schedule& order);
Schedule add_send_recv_as_torch(const Timetable& table);

// Moves each RECV of a lowered schedule to `lookahead` compute actions before the one that needs
// it.  The order of the messages between two ranks stays: a RECV moves as far as that allows.
// Receives are deferred with lookahead 0.
// REQUIRES: lookahead >= 0.
Schedule place_receives(Schedule schedule, std::int32_t lookahead);

// Our placement: torch's order of messages, each RECV so early that its transfer runs while its
// receiver computes.
// REQUIRES: a compute order; lookahead >= 0.
Schedule add_send_recv(const Schedule& order, std::int32_t lookahead = 4);

// Each RECV right before the action that needs it: what torch's ScheduleGPipe and Schedule1F1B
// issue.  The two ends of a link may have its messages in different orders.
Schedule add_send_recv_at_use(Schedule order);

// Lowering ---------------------------------------------------------------------------------------

// What penstock runs: reductions, then messages, as above.
// REQUIRES: a compute order.
Schedule lower_communication(Schedule order);

// What torch.distributed.pipelining makes of a compute order: weights, reductions, messages.
// REQUIRES: a compute order.
Schedule lower_as_torch(Schedule order);

}  // namespace penstock::schedule
