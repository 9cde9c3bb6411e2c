// The even/odd clock of DeepSpeed's TrainSchedule: which microbatch a stage works on at which step.
//
// steps.h writes its instructions by it, and DeepSpeed's users call it by name.  Neighbouring
// stages never go in the same direction in one step, so every step pairs them: one hands on an
// activation, the other a gradient.  A stage goes forward at steps of its own parity.  Knows no
// instructions. Source: TrainSchedule of deepspeed.runtime.pipe.schedule, whose private methods
// bear these names.
#pragma once
#include <cstdint>

namespace penstock::schedule::deepspeed {

struct Position {
  std::int32_t microbatches = 1;  // At least 1.
  std::int32_t stages = 1;        // At least 1.
  std::int32_t stage = 0;         // Counts in [0, stages).
};

// Throws: ScheduleError, which names each argument that is out of its range, its value and the
// range.  Every function that takes a Position calls it.
void check_position(const Position& position);

struct Tick {
  std::int32_t microbatch = 0;  // May be out of [0, microbatches): then the stage computes nothing.
  bool is_forward = true;
  friend bool operator==(const Tick&, const Tick&) = default;
};

// What the stage works on at `step`.  F of microbatch k is at step 2k + stage, its B at
// 2k + 2 stages - 1 - stage.
Tick step_to_micro_batch(const Position& position, std::int32_t step);

// The microbatch by the parity of the step and by direction, each of use on stages of one parity
// only; halves are rounded down, below 0 too.
std::int32_t even_step_forward_id(const Position& position, std::int32_t step);
std::int32_t odd_step_forward_id(const Position& position, std::int32_t step);
std::int32_t even_step_backward_id(const Position& position, std::int32_t step);
std::int32_t odd_step_backward_id(const Position& position, std::int32_t step);

// 2 (microbatches + stages - 1).
std::int32_t train_step_count(const Position& position);

}  // namespace penstock::schedule::deepspeed
