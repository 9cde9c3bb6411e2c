// Starts the ranks of a training run, and starts them again as long as that helps.
//
// train.h calls it once all that can be checked beforehand is.  When a start is tried again is
// launch/restarts.h's decision; with which ranks, that of choose/fewer_ranks.h and
// choose/rerouting.h.
#pragma once
#include <string>

#include "penstock/cli/rank_start.h"
#include "penstock/config/config.h"
#include "penstock/core/output.h"
#include "penstock/launch/launcher.h"

namespace penstock::cli {

struct RunToLaunch {
  RankStart start;        // What its ranks begin with, the first time.
  config::Config config;  // What that says.
  std::string run;        // The run directory.
};

// Starts ranks until the run is done, is asked to stop, or no start is left.  A run that saves
// checkpoints goes on from its newest one.  Before it has one of its own, it is started again as it
// was started.
// Returns: the exit code of the last start.
int launch_run(const RunToLaunch& run, const launch::LaunchOptions& options, Output& output);

}  // namespace penstock::cli
