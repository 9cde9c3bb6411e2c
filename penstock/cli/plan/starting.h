// What commands that start ranks have in common: how many, what is refused, and how they are
// launched.
//
// train.cpp, evaluate.cpp and generate.cpp use it.  Knows no run directory.
#pragma once
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "penstock/cli/plan/train_command.h"
#include "penstock/cli/rank_start.h"
#include "penstock/config/config.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/launcher.h"

namespace penstock::cli {

// What ranks are started with, of the configuration that the command names, or of one for the
// folder of a model that it names.  Throws: as start_of().
RankStart start_of_model(const TrainCommand& command);

// Ranks to start on this machine: --nproc, or as many as the mesh has.
// Throws: ConfigError where one machine does not start so many.
std::int64_t local_ranks(const TrainCommand& command, const config::MeshConfig& mesh);

// Each rank opens `path` for itself.  Throws: ConfigError where that is a pipe.
void check_is_no_pipe(const std::string& what, const std::string& path);

// What every rank would find wrong is said once, before any starts.  Throws: Error.
void check_run(const RankStart& start, const config::Config& config, std::int64_t world_size);

// A line on the standard error for each reason why keys have no effect.
void tell_ineffective_keys(const config::ReadConfig& read);

// Options that start ranks, in a process that is a rank already.  Throws: ConfigError.
void refuse_launching(const TrainCommand& command, const launch::LauncherEnvironment& self);

// Starts ranks once, and waits for them: those that run `subcommand` of the program with the
// tensors, with these words, and begin with `start`.  `variables`: more of their environment.
// `interrupted`: as in LaunchOptions.
// Returns: their exit code.
int run_ranks_once(const std::string& subcommand, const std::vector<std::string>& words,
                   const TrainCommand& command, const RankStart& start,
                   const config::Config& config,
                   const std::vector<std::pair<std::string, std::string>>& variables = {},
                   std::function<void()> interrupted = {});

// The launch of `nproc` ranks that run `subcommand` of the program with the tensors; its words, and
// the variable of what it starts with, are to be added.  `messages` outlives what is returned.
// Throws: Error when that program is not there.
launch::LaunchOptions rank_launch(const std::string& subcommand, const TrainCommand& command,
                                  const config::Config& config, std::int64_t nproc,
                                  std::ostream& messages);

}  // namespace penstock::cli
