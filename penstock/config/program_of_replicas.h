// What a run cannot have whose program is that of several replicas (schedule/schedule.h).
//
// A Trainer asks before it makes a layer, `penstock train` before it starts a rank.
#pragma once
#include "penstock/config/config.h"

namespace penstock::config {

// Ranks with the same stages pass different numbers of microbatches, so they fetch no parameters
// together, and their gradients have no one order of sums.
// Throws: ConfigError for ZeRO 3 and for invariant sums.
void check_program_of_replicas(ZeroStage stage, bool has_invariant_sums);

// Places of the pipe may have different numbers of ranks, which cut what they share differently.
// Throws: ConfigError for tied layers and any ZeRO.
void check_tied_program_of_replicas(ZeroStage stage);

// The same of a whole configuration, but for ties.
// Throws: ConfigError also for schedule.adapt: no other program could take its place.
void check_program_of_replicas(const Config& config);

}  // namespace penstock::config
