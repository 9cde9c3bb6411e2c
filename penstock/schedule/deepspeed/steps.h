// DeepSpeed's three schedules as steps of instructions, and as programs of the IR.
//
// A view for those who speak that dialect; the generators of the registry are what penstock plans
// with.  Knows no engine: what an instruction does with its buffer is in instruction.h's source.
// Source: deepspeed.runtime.pipe.schedule; TrainSchedule of two versions.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/schedule/action.h"
#include "penstock/schedule/deepspeed/instruction.h"

namespace penstock::schedule::deepspeed {

// REQUIRES, everywhere: microbatches >= 1, stages >= 1, stage in [0, stages).
struct Position {
  std::int32_t microbatches = 1;
  std::int32_t stages = 1;
  std::int32_t stage = 0;
};

enum class TrainVersion : std::uint8_t {
  Original,  // Receives before it sends going forward; a buffer more.
  Later,     // As DeepSpeed 0.16: the other order, so that no buffer is filled before it is sent.
};

// 1F1B on a clock of 2 (microbatches + stages - 1) steps: F of microbatch k at step 2k + stage, B
// at 2k + 2 stages - 1 - stage.  Steps without work are empty.
std::vector<Step> train_steps(const Position& position,
                              TrainVersion version = TrainVersion::Original);
std::int32_t train_buffers(const Position& position, TrainVersion version = TrainVersion::Original);

// Forward only: microbatch k at step k + stage, in two buffers.
std::vector<Step> inference_steps(const Position& position);
inline constexpr std::int32_t kInferenceBuffers = 2;

// A step per microbatch, all of it on one rank, in one buffer.
std::vector<Step> data_parallel_steps(const Position& position);
inline constexpr std::int32_t kDataParallelBuffers = 1;

// What the steps do, as actions of the IR: the k-th instruction of a kind is microbatch k.  Loads,
// the reduction of tied weights and the optimizer's step have no action.
Program to_program(const std::vector<Step>& steps, StageId stage);

}  // namespace penstock::schedule::deepspeed
