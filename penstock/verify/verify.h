// Proves that a schedule can run, before anything does.
//
// verify() replays the programs under the rules that the executor will follow and returns every
// objection; VerifiedSchedule::from() throws them.  Only a VerifiedSchedule can be lowered or
// simulated, so nothing unverified runs, by type.  Knows no devices and no time.
//
// The rules.  Every stage lives on one rank and runs each microbatch's F once and, when training,
// either its B or its I and its W, once.  F(s, m) needs F(s-1, m); B(s, m) and I(s, m) need F(s, m)
// and the B or I of (s+1, m); W(s, m) needs I(s, m).  An overlapped pair is an F and the B right
// behind it, of another microbatch: it starts when both can.  A lowered program also needs every
// value that crosses ranks sent once after it is made, and received once before it is used.  SEND
// and RECV only post; a compute action waits for its RECV, and every message finds its own partner
// (named messages, the "tagged" channel).  REDUCE_GRAD comes after the stage's last B or W, that of
// one microbatch after its B or W; a stage has one of all microbatches or one of each.  On a rank
// with an UNSHARD, a stage computes only between its UNSHARD and its RESHARD.  No rank is without a
// stage.  Cost: linear in the number of actions.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

// Stable codes, listed with an example each in docs/errors.md.
enum class Code : std::uint8_t {
  BadStage = 1,             // S001: a stage that is out of range.
  BadMicrobatch = 2,        // S002: a microbatch that is out of range, absent or superfluous.
  StageOnTwoRanks = 3,      // S003
  Missing = 4,              // S004: a stage never runs an F, B, I or W, or a rank runs nothing.
  Duplicate = 5,            // S005: an action that appears twice.
  UnexpectedBackward = 6,   // S006: part of a backward in a forward-only schedule.
  BadOverlap = 7,           // S007: an overlapped F without a B of another microbatch behind it.
  TwoBackwards = 8,         // S008: a B beside an I or a W of the same stage and microbatch.
  BeforeItsInput = 12,      // S012: a rank runs an action before one of its own that it needs.
  UnpairedSend = 20,        // S020: a SEND whose RECV is nowhere, or on a wrong rank.
  UnpairedReceive = 21,     // S021: a RECV whose SEND is nowhere, or on a wrong rank.
  NotReceived = 22,         // S022: a compute action whose input from another rank has no RECV.
  LocalMessage = 23,        // S023: a SEND or RECV between stages of one rank.
  Deadlock = 30,            // S030: ranks wait for each other; the note spells the cycle.
  ReduceTooEarly = 40,      // S040: REDUCE_GRAD before the last B or W whose gradients it sums.
  NotReduced = 41,          // S041: a stage or microbatch without its REDUCE_GRAD; others have one.
  NotUnsharded = 42,        // S042: a stage computes without its weights, before UNSHARD.
  ShardTwice = 43,          // S043: UNSHARD of an unsharded stage, or RESHARD of a sharded one.
  TooManyActivations = 50,  // S050: more live activations on a rank than allowed.

  // Of a schedule in DeepSpeed's form alone (stepped.h).
  ScatteredEnds = 60,        // S060: the ends of a message or tied reduction in different steps.
  Circle = 61,               // S061: within a step, stages wait for each other.
  UnequalSteps = 62,         // S062: the stages have different numbers of steps.
  WrongStage = 63,           // S063: an instruction that its stage has no use or neighbour for.
  NoSuchBuffer = 64,         // S064: a buffer id outside the stage's buffers.
  NothingThere = 65,         // S065: a buffer does not hold what an instruction needs.
  Overwrites = 66,           // S066: a buffer still holds what somebody needs.
  OtherMicrobatch = 67,      // S067: labels or a gradient of another microbatch than the output's.
  Unused = 68,               // S068: a load or an input that no ForwardPass uses.
  OptimizerOutOfPlace = 69,  // S069: a reduction or OptimizerStep too early, twice or not at all.
};

// "S012".
std::string to_string(Code code);

struct Diagnostic {
  Code code = Code::BadStage;
  std::optional<Rank> rank;          // On the pipe axis.
  std::optional<std::int32_t> step;  // Index into that rank's program.
  std::string message;
  std::vector<std::string> notes;  // The window of the program around it; the repair.
};

// "rank 1 step 6: 1B0 runs before 1F0 [S012]", and a line per note.
std::string to_string(const Diagnostic& diagnostic);

struct Limits {
  // Largest number of (stage, microbatch) activations alive on one rank; absent: any.
  std::optional<std::int32_t> activations_max;
};

// What the replay found out about a schedule without objections.
struct Facts {
  std::vector<Rank> rank_of_stage;
  // By rank: most (stage, microbatch) activations alive at once.  An activation lives from its F
  // to its B or W; a forward-only schedule keeps none.
  std::vector<std::int32_t> peak_activations;
};

struct Verdict {
  // All of them: those of the whole schedule, then in program order.  Empty: it verifies.
  std::vector<Diagnostic> diagnostics;
  Facts facts;  // Meaningful only when there are no diagnostics.
};

Verdict verify(const schedule::Schedule& schedule, const Limits& limits = {});

class VerifiedSchedule {
 public:
  // Throws: ScheduleError with every diagnostic (the first 20 in full).
  static VerifiedSchedule from(schedule::Schedule schedule, const Limits& limits = {});

  const schedule::Schedule& schedule() const { return schedule_; }
  const Facts& facts() const { return facts_; }
  Rank rank_of(StageId stage) const { return facts_.rank_of_stage[stage.index()]; }

 private:
  VerifiedSchedule(schedule::Schedule schedule, Facts facts);
  schedule::Schedule schedule_;
  Facts facts_;
};

}  // namespace penstock::verify
