// What commands that start ranks have in common: how many, what is refused, and how they are
// launched.
//
// train.cpp, evaluate.cpp and generate.cpp use it.  Knows no run directory.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>

#include "penstock/cli/train_command.h"
#include "penstock/config/config.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/launcher.h"

namespace penstock::cli {

// Reads the configuration that the command names, or makes one for the model's folder that it
// names.  Hands it on to the ranks.  Throws: as read_and_hand_on().
config::ReadConfig read_model(const TrainCommand& command);

// Ranks to start on this machine: --nproc, or as many as the mesh has.
// Throws: ConfigError where one machine does not start so many.
std::int64_t local_ranks(const TrainCommand& command, const config::MeshConfig& mesh);

// Each rank opens `path` for itself.  Throws: ConfigError where that is a pipe.
void check_is_no_pipe(const std::string& what, const std::string& path);

// What every rank would find wrong is said once, before any starts.  Throws: Error.
void check_run(const TrainCommand& command, const config::Config& config, std::int64_t world_size);

// Options that start ranks, in a process that is a rank already.  Throws: ConfigError.
void refuse_launching(const TrainCommand& command, const launch::LauncherEnvironment& self);

// The launch of `nproc` ranks that run `subcommand` of the program with the tensors; its words are
// to be added.  `messages` outlives what is returned.  Throws: Error when that program is not
// there.
launch::LaunchOptions rank_launch(const std::string& subcommand, const TrainCommand& command,
                                  const config::Config& config, std::int64_t nproc,
                                  std::ostream& messages);

}  // namespace penstock::cli
