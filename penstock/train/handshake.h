// What all ranks must have in common before the first step, compared.
//
// A Trainer does it when it is made: ranks that run different things would hang, or train nonsense.
// Knows no connections but the Communicator's exchange of texts.
#pragma once
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/train/facts.h"
#include "penstock/train/trainer_options.h"

namespace penstock::train {

// Ranks that do not run the same thing.  Every rank finds it, with the same words.
class DifferenceError : public CommError {
 public:
  explicit DifferenceError(const std::string& message, std::vector<std::string> notes = {})
      : CommError(message, std::move(notes), ExitCode::Usage) {}
};

// Those of the process, and the program.
Facts facts_of(const verify::VerifiedSchedule& schedule);
// Those, and all that a Trainer is made from.
Facts facts_of(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
               const verify::VerifiedSchedule& schedule, const partition::Partition& partition);

// Parameters of the layers that a rank has made: types, sizes.
Facts facts_of(const std::vector<stage::Stage>& stages);

// Collective over all ranks: those of each group must have the same facts.
// Throws: DifferenceError, with one text on every rank: the first rank that differs from the first
// of its group, the first fact that does, and both values.
void agree_on(const std::string& name, const Facts& facts, comm::Communicator& communicator,
              const std::vector<std::vector<Rank>>& groups);

}  // namespace penstock::train
