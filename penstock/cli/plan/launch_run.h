// Starts the ranks of a training run, and starts them again as long as that helps.
//
// train.h calls it once all that can be checked beforehand is.  When a start is tried again is
// launch/restarts.h's decision; with which ranks, config/other_ranks.h's.
#pragma once
#include <string>

#include "penstock/cli/train_command.h"
#include "penstock/config/config.h"
#include "penstock/config/other_ranks.h"
#include "penstock/core/output.h"
#include "penstock/launch/launcher.h"

namespace penstock::cli {

struct RunToLaunch {
  std::string name;  // Name of the configuration, for errors.
  config::Config config;
  std::string run;  // The run directory.
};

// Starts ranks until the run is done, is asked to stop, or no start is left.  A run that saves
// checkpoints goes on from its newest one.  Before it has one of its own, it is started again as it
// was started.
// Returns: the exit code of the last start.
int launch_run(const RunToLaunch& run, const launch::LaunchOptions& options, TrainCommand command,
               Output& output);

// The layout of exactly `ranks` ranks on which `config`, made for `before`, can go on; absent where
// there is none.
std::optional<config::RankLayout> layout_on(std::int64_t ranks, const std::string& name,
                                            const config::Config& config,
                                            const config::RankLayout& before);

}  // namespace penstock::cli
