// Says what a run cannot have whose program is that of several replicas (schedule/schedule.h), and
// why.
//
// A Trainer asks before it makes a layer, `penstock train` before it starts a rank.
#pragma once
#include "penstock/config/config.h"
#include "penstock/core/mesh/groups.h"

namespace penstock::config {

// Ranks with the same parameters and programs of their own pass different numbers of microbatches,
// so they fetch no parameters together.
// Throws: ConfigError for ZeRO 3, where programs are not alike.
void check_programs(mesh::Programs programs, ZeroStage stage);

// Places with different numbers of ranks cut what they share differently.
// Throws: ConfigError for any ZeRO, if layers of such places are tied.
void check_uneven_ties(ZeroStage stage);

// The same of a whole configuration, but for ties.
// Throws: ConfigError also for mesh.tensor, since its ranks have whole layers, and for
// schedule.adapt: no other program could take its place.
void check_programs(mesh::Programs programs, const Config& config);

}  // namespace penstock::config
