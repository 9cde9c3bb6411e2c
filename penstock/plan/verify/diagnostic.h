// An objection to a schedule: a stable code, the place, the words.
//
// verify makes them; people read them, and docs/errors.md has an example of each code.  Knows no
// rules.
#pragma once
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/schedule/schedule.h"

namespace penstock::verify {

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
  Deadlock = 30,            // S030: waits that form a cycle; the notes spell it.
  Misorder = 31,            // S031: a RECV that would be given another SEND's message.
  ReduceTooEarly = 40,      // S040: REDUCE_GRAD before the last B or W whose gradients it sums.
  NotReduced = 41,          // S041: a stage or microbatch without its REDUCE_GRAD; others have one.
  NotUnsharded = 42,        // S042: a stage computes without its weights, before UNSHARD.
  ShardTwice = 43,          // S043: UNSHARD of an unsharded stage, or RESHARD of a sharded one.
  TooManyActivations = 50,  // S050: more live activations on a rank than allowed.
  TooMuchMemory = 51,       // S051: live activations of a rank take more memory than allowed.

  // Codes of schedules in DeepSpeed's form alone (stepped.h).
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
// A word for programs that read it: "before-its-input", "deadlock", "misorder".
std::string_view kind(Code code);

struct Diagnostic {
  Code code = Code::BadStage;
  std::optional<Rank> rank;          // Rank on the pipe axis.
  std::optional<std::int32_t> step;  // Index into that rank's program.
  std::string message;
  std::vector<std::string> notes;  // The window of the program around it; the repair.
};

// The place of an action.
struct Place {
  Rank rank;
  std::int32_t step = 0;  // Index into the rank's program.
};
// "rank 1 step 6".
std::ostream& operator<<(std::ostream& out, const Place& place);

// "rank 1 step 6: 1B0 runs before 1F0 [S012]", and a line per note.
std::string to_string(const Diagnostic& diagnostic);

// "1F0 1B0 [1F1] 1B1": the program around a step, the step itself in brackets.
std::string window(const schedule::Program& program, std::int32_t step);

// The objections to one schedule.
class Objections {
 public:
  explicit Objections(const schedule::Schedule& schedule) : schedule_(schedule) {}

  // Objects to the whole schedule.
  void add(Code code, std::string message, std::vector<std::string> notes = {});
  // Objects to one action; the notes are the program around it, and `repair`.
  void add(Code code, const Place& place, std::string message, const std::string& repair);
  void add(Diagnostic diagnostic) { diagnostics_.push_back(std::move(diagnostic)); }

  bool empty() const { return diagnostics_.empty(); }
  // Objections to the whole schedule, then in program order.
  std::vector<Diagnostic> in_order() &&;

 private:
  const schedule::Schedule& schedule_;
  std::vector<Diagnostic> diagnostics_;
};

}  // namespace penstock::verify
