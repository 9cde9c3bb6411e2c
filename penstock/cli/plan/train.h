// A training run, from its command line.
//
// `penstock train` is it; `penstock selftest` makes several.
#pragma once
#include "penstock/cli/plan/train_command.h"

namespace penstock::cli {

// Starts the ranks, again where they are lost, and waits for them; or becomes one, where another
// launcher has started this process.
// Returns: the exit code.  Throws: Error, before anything was started.
int run_train(const TrainCommand& command);

}  // namespace penstock::cli
