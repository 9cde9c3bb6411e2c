// DeepSpeed's three schedules, each as the steps of one stage, and their numbers of buffers.
//
// A view for those who speak that dialect; the generators of the registry are what penstock plans
// with.  stepped.h puts the stages together.  Knows no engine: what an instruction does with its
// buffer is in instruction.h.
// Throws, everywhere: ScheduleError for a position outside the pipeline, as check_position().
// Source: deepspeed.runtime.pipe.schedule; TrainSchedule of two versions.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/plan/schedule/deepspeed/clock.h"
#include "penstock/plan/schedule/deepspeed/instruction.h"

namespace penstock::schedule::deepspeed {

enum class TrainVersion : std::uint8_t {
  Original,  // Receives before it sends going forward; a buffer more.
  Later,     // DeepSpeed 0.16's: the other order, so that no buffer is filled before it is sent.
};

// 1F1B on the clock of clock.h: train_step_count() steps, those without work empty.
std::vector<Step> train_steps(const Position& position,
                              TrainVersion version = TrainVersion::Original);
std::int32_t train_buffers(const Position& position, TrainVersion version = TrainVersion::Original);

// Step number `step` of TrainSchedule, with another number of buffers than train_buffers() says.
// REQUIRES: 0 <= step < train_step_count(position), buffers >= 1.
Step train_step(const Position& position, std::int32_t step, TrainVersion version,
                std::int32_t buffers);

// The same of another clock: what a stage does at `tick` after a step of microbatch `previous` (in
// range or not).  Reductions and the optimizer of the last step are left out.
// REQUIRES: buffers >= 1.
Step train_step_at(const Position& position, const Tick& tick, std::int32_t previous,
                   TrainVersion version, std::int32_t buffers);

// Forward only: microbatch k at step k + stage, in two buffers; microbatches + stages - 1 steps.
std::vector<Step> inference_steps(const Position& position);
inline constexpr std::int32_t kInferenceBuffers = 2;

// Step number `step` of InferenceSchedule.  REQUIRES: 0 <= step < microbatches + stages - 1.
Step inference_step(const Position& position, std::int32_t step);

// A step per microbatch, all of it on one rank, in one buffer.
std::vector<Step> data_parallel_steps(const Position& position);
inline constexpr std::int32_t kDataParallelBuffers = 1;

// Step number `step` of DataParallelSchedule.  REQUIRES: 0 <= step < microbatches.
Step data_parallel_step(const Position& position, std::int32_t step);

}  // namespace penstock::schedule::deepspeed
