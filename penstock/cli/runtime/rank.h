// Runs one rank of a command: meets the others, does its work, and tells the launcher how it went.
//
// main.cpp calls it.  Knows the launcher's channel and nothing of how a model trains.
#pragma once
#include <functional>

#include "penstock/cli/rank_start.h"
#include "penstock/run/run.h"

namespace penstock::cli {

// What a rank does once it knows the others: run::run() for `penstock train`.
using RankWork = std::function<ExitCode(const config::ReadConfig& read, comm::Communicator& all,
                                        c10::Device device, const run::RunHooks& hooks)>;

// Returns the process's exit code; what failed has been said by then, on the launcher's channel or,
// without one, on stderr.
int run_rank(const RankStart& start, const RankWork& work);

}  // namespace penstock::cli
