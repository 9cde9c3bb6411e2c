// The memory of one rank over a training step, told from its plan: nothing runs.
//
// `penstock memory` prints it.  Walks the plan as the executor does and knows what each instruction
// holds and lets go of; what is there all the time comes from outside.  Knows no tensors.
// Units: bytes.  A send is taken to hold its tensor until the plan waits for it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/lower/plan.h"
#include "penstock/plan/memory/stage_memory.h"

namespace penstock::memory {

// What is on a rank at one moment, by what it is.
struct Bytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;  // Kept for backwards, and what a pass works with.
  std::int64_t buckets = 0;   // Buckets of sums over replicas, and of parameters that are gathered.
  std::int64_t messages = 0;  // Buffers of receives, and gradients that are being sent.
  std::int64_t batch = 0;     // The step's inputs and targets.
  std::int64_t copies = 0;    // Copies of what is saved in checkpoints.

  std::int64_t total() const {
    return parameters + gradients + optimizer + activations + buckets + messages + batch + copies;
  }
  friend Bytes operator+(const Bytes& a, const Bytes& b);
};

struct RankMemory {
  Bytes peak;           // Bytes when most is there.
  std::string at;       // The instruction: "1B3", or "update".
  Bytes between_steps;  // Bytes with the gradients of the step before.
  // Largest number of activations of a stage and a microbatch at once.
  std::int32_t live_activations = 0;
};

// What is there besides what a plan's instructions make.
struct Standing {
  Bytes always;             // Bytes from the second step on, without messages.
  Bytes in_step;            // Bytes added while a plan runs.
  std::int64_t update = 0;  // Bytes added behind the plan, while the optimizer steps.
};

// `stages` are the plan's chunks.  REQUIRES: a plan that trains.
RankMemory rank_memory(const lower::Plan& plan, const std::vector<StageMemory>& stages,
                       const Standing& standing);

}  // namespace penstock::memory
