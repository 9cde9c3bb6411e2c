// The command line of `penstock train`, and what other commands that start ranks have of it.
//
// Ranks are started with what follows from it (rank_start.h).  Knows no processes and no tensors.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/cli/rank_start.h"
#include "penstock/launch/inject/fault.h"
#include "penstock/plan/config/override.h"

namespace penstock::cli {

struct TrainCommand {
  std::string config;                       // Path of the JSON file.
  std::int64_t nproc = 0;                   // Local ranks; 0: as many as the mesh has.
  std::string host;                         // What this host's ranks listen on; "": they find out.
  std::uint16_t master_port = 0;            // 0: a free one.
  std::vector<inject::Fault> faults;        // Failures that a rank is to suffer.
  std::vector<config::Override> overrides;  // Values in the order given; short options too.
};

// Declares the options of every command that starts ranks: how many, and where they listen.
void declare_ranks(CLI::App& app, TrainCommand& command);
// Declares the options on `app`; they are in `command` once the app has parsed.
void declare_train(CLI::App& app, TrainCommand& command);

// What its ranks are started with; the configuration's file is read now, once.
// Throws: ConfigError, Error.
RankStart start_of(const TrainCommand& command);
// The same of a text that is in no file; command.config is its name.
RankStart start_of(const TrainCommand& command, std::string text);

// The name in "runs/NAME-...": the config file's, without folder and extension.
std::string run_name(const TrainCommand& command);

}  // namespace penstock::cli
