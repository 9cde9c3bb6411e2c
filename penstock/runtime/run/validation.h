// The loss over a run's validation batches, and whether there will be any.
//
// run.h asks for it every run.eval_interval steps, and behind the last.  Knows no files.
#pragma once
#include <cstdint>
#include <functional>

#include "penstock/runtime/run/configured_trainer.h"
#include "penstock/runtime/run/run_data.h"

namespace penstock::run {

// Reads what validation is going to read: behind the last step, an error would come too late.
// Throws: ConfigError where no token of a set's batches counts.
void check_validation(const RunData& data, std::int64_t batches,
                      const std::function<void()>& advanced);

// Reads the masks of so many steps.
// Throws: ConfigError where no token of a step counts.
void check_training(const RunData& data, std::int64_t steps);

// The steps that so many passes over the data take.
// Throws: ConfigError for data without such passes: text, and a mixture of sources.
std::int64_t steps_of_epochs(const RunData& data, double epochs, std::int64_t batch_size);

// The mean over all tokens of a set that count.  Collective over all ranks.
// REQUIRES: there are batches, and check_validation() has found them good.
double validation_loss(const RunData& data, std::size_t set, std::int64_t batches,
                       ConfiguredTrainer& trained);

}  // namespace penstock::run
