// The memory of a run's ranks, and the times of its layers, told before it starts: no rank, no
// message, no training.
//
// `penstock memory` and `penstock profile` print it.  Takes what a Trainer takes, and plans as it
// does; layers are measured one at a time (probe/), the rest is arithmetic (memory/). Units: bytes.
// Not in it: what is no tensor (code, libraries, connections, shared memory of messages), and
// validation and generation, which keep no activations.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/plan/memory/pipe_memory.h"
#include "penstock/runtime/probe/layer_probe.h"
#include "penstock/runtime/probe/layer_timer.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

using memory::PipeRank;

struct TrainingInputs {
  nn::Values inputs;  // Inputs of one microbatch.
  nn::Values targets;
  std::int64_t batch_bytes = 0;  // What a rank holds of a step's inputs and targets.
  // The place in which layers run, and who hears of each, for layer_memory().
  probe::Place place = probe::host();
  probe::Begins begins = [](const std::string&) {};
};

// What single layers take in the run's types, for a microbatch such as `inputs`.
// Throws: as the Trainer, for a model that does not fit.
memory::ModelMemory layer_memory(const train::TrainerOptions& options,
                                 std::vector<nn::LayerSpec>& model, const nn::Loss& loss,
                                 const TrainingInputs& inputs);

// How long single layers' passes take, in the run's types.  `timing` has the seconds and the
// progress alone; the rest is of `options`.
// Throws: as the Trainer, for a model that does not fit.
probe::ModelTimes layer_times(const train::TrainerOptions& options,
                              std::vector<nn::LayerSpec>& model, const nn::Loss& loss,
                              const TrainingInputs& inputs, probe::Timing timing);

// Does what memory::pipe_memory() does, with the copies that checkpoints take.
// Throws: as the Trainer, for options and a model that do not fit.
std::vector<PipeRank> run_memory(const train::TrainerOptions& options,
                                 std::vector<nn::LayerSpec> model, const nn::Loss& loss,
                                 const TrainingInputs& inputs,
                                 memory::Copies copies = memory::Copies::Absent);

}  // namespace penstock::run
