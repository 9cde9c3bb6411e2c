// Being one rank of `penstock train`: meets the others, runs, and tells the launcher how it went.
//
// main.cpp calls it.  Knows the launcher's channel and nothing of how a model trains.
#pragma once
#include "penstock/cli/train_command.h"

namespace penstock::cli {

// Returns the process's exit code; what failed has been said by then, on the launcher's channel or,
// without one, on stderr.
int run_rank(const TrainCommand& command);

}  // namespace penstock::cli
