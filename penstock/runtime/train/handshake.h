// Compares what all ranks must have in common: the one door through which they do.
//
// A Trainer goes through it when it is made, a TrainingProgram when it changes, engines of Python
// before each step, and whoever loads a checkpoint.  Ranks that have different things would hang,
// or train nonsense.  Which facts there are: agreement/fact.h.  Knows no connections but the
// Communicator's exchange of texts.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/comm/communicator.h"
#include "penstock/core/agreement/difference.h"
#include "penstock/runtime/train/facts.h"
#include "penstock/train/trainer_options.h"

namespace penstock::train {

using agreement::DifferenceError;
using agreement::Occasion;

// Facts of the process and of the program.
Facts facts_of(const verify::VerifiedSchedule& schedule);
// The same, and all that a Trainer is made from.  No partition: it follows from parameters that are
// not counted yet.
Facts facts_of(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
               const verify::VerifiedSchedule& schedule,
               const std::optional<partition::Partition>& partition);

// Hashes of parameters' values (stage/value_hash.h), by name.
using ValueHashes = std::map<std::string, std::string>;

// Parameters of the layers that a rank has made: types, sizes, and values as they were made, as far
// as their hashes are there.
Facts facts_of(const std::vector<stage::Stage>& stages, const ValueHashes& values);

// The checkpoint that a rank has opened; null: there is none.
Facts facts_of(const checkpoint::SavedCheckpoint* saved);

// Collective over all ranks: those of each group must have the same facts.
// REQUIRES: the table has the facts under that occasion.
// Throws: DifferenceError, with one text on every rank: the first rank that differs from the first
// of its group, the first fact that does, and both values.
void agree_on(Occasion occasion, const Facts& facts, comm::Communicator& communicator,
              const std::vector<std::vector<Rank>>& groups);
// The same of all ranks.
void agree_on(Occasion occasion, const Facts& facts, comm::Communicator& communicator);

}  // namespace penstock::train
