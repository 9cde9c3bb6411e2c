// Finds the microbatch that each instruction works on, followed from stage to stage through the
// buffers.
//
// to_schedule() and verify/stepped.h ask it.  Loads take microbatches in order, messages of one
// direction between two stages arrive in the order in which they are sent.  A buffer has a place
// for an input, its labels, the output, and the gradients of both.  Knows no waiting: see verify.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"

namespace penstock::schedule::deepspeed {

enum class Fault : std::uint8_t {
  WrongStage,       // A stage has no neighbour to exchange with, or nothing to load.
  NoSuchBuffer,     // A buffer id outside [0, buffers).
  NothingThere,     // The buffer does not hold what the instruction needs.
  Overwrites,       // The buffer still holds what somebody needs.
  OtherMicrobatch,  // Labels or a gradient of another microbatch than the output's.
  Unused,           // A load or an input that no ForwardPass uses.
  Unpaired,         // A send that is never received, or the other way round.
};

struct InstructionPlace {
  StageId stage;
  std::int32_t step = 0;
  std::int32_t index = 0;  // Number in the step.
};

struct TraceFault {
  Fault fault = Fault::WrongStage;
  InstructionPlace place;
  std::string message;  // "ForwardPass(buffer_id=1) finds no input in its buffer"
  std::string repair;
};

struct Trace {
  // Microbatches by stage: one entry per instruction, steps in turn.  Absent for reductions, the
  // optimizer, and where a fault hides it.  Empty when a buffer or a neighbour does not exist.
  std::vector<std::vector<std::optional<Microbatch>>> microbatches;
  std::vector<TraceFault> faults;  // Sorted by stage, then in order of the instructions.
};

// Instructions that their stage has no use, no neighbour or no buffer for.  trace() goes on only
// when there are none.
std::vector<TraceFault> misplaced(const SteppedSchedule& schedule);

Trace trace(const SteppedSchedule& schedule);

// Whether any stage has a BackwardPass: then a buffer is in use until its backward is over.
bool trains(const SteppedSchedule& schedule);

}  // namespace penstock::schedule::deepspeed
