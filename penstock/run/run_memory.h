// The memory of a run's ranks, told before it starts: no rank, no message, no training.
//
// `penstock memory` prints it.  Takes what a Trainer takes, and plans as it does; layers are
// measured one at a time (probe/), the rest is arithmetic (memory/).
// Units: bytes.  Not in it: what is no tensor (code, libraries, connections, shared memory of
// messages), and validation and generation, which keep no activations.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/memory/rank_memory.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

struct TrainingInputs {
  nn::Values inputs;  // Of one microbatch.
  nn::Values targets;
  std::int64_t batch_bytes = 0;  // What a rank holds of a step's inputs and targets.
};

struct PipeRank {
  std::vector<StageId> stages;
  memory::RankMemory memory;
  std::int64_t file_bytes = 0;  // Of what is offloaded to files, and not in `memory`.
  std::vector<partition::Ownership> ownership;  // By stage: who has which parameter.
};

// By rank of the pipe axis, for the first replica; others have the same, but for at most a bucket's
// padding.
// Throws: as the Trainer, for options and a model that do not fit.
std::vector<PipeRank> run_memory(const train::TrainerOptions& options,
                                 std::vector<nn::LayerSpec> model, const nn::Loss& loss,
                                 const TrainingInputs& inputs);

}  // namespace penstock::run
