// What all ranks must have in common before the first step, compared.
//
// A Trainer does it when it is made: ranks that run different things would hang, or train nonsense.
// Knows no connections but the Communicator's exchange of texts.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/train/trainer.h"

namespace penstock::train {

using Facts = std::vector<std::pair<std::string, std::string>>;

Facts facts_of(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
               const verify::VerifiedSchedule& schedule, const partition::Partition& partition);

// Collective over all ranks.
// Throws: CommError, with one text on every rank: the first rank that differs from rank 0, the
// first fact that does, and both values.
void agree_on(const Facts& facts, comm::Communicator& communicator);

}  // namespace penstock::train
