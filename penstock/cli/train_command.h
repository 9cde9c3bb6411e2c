// The command line of `penstock train`, as both programs read it.
//
// `penstock` parses it to start ranks, `penstock-runtime` parses the same words to be one.
// Knows no processes and no tensors.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/config/read.h"
#include "penstock/inject/fault.h"

namespace penstock::cli {

struct TrainCommand {
  std::string config;                       // Path of the JSON file.
  std::int64_t nproc = 0;                   // Local ranks; 0: as many as the mesh has.
  std::string host;                         // What this host's ranks listen on; "": they find out.
  std::uint16_t master_port = 0;            // 0: a free one.
  std::vector<inject::Fault> faults;        // Failures that a rank is to suffer.
  std::vector<config::Override> overrides;  // Overrides in the order given; short options too.
};

// The variable by which `penstock-runtime` knows which version of `penstock` started it.
inline constexpr const char* kVersionVariable = "PENSTOCK_LAUNCHER_VERSION";

// Declares the options of every command that starts ranks: how many, and where they listen.
void declare_ranks(CLI::App& app, TrainCommand& command);
// Declares the options on `app`; they are in `command` once the app has parsed.
void declare_train(CLI::App& app, TrainCommand& command);

// The words of the config, the overrides and the address, that every command of ranks takes.
std::vector<std::string> words_of(const TrainCommand& command);
// The words after `train` that give the same command again, in the run directory `run`.
std::vector<std::string> words_of(const TrainCommand& command, const std::string& run);

// Reads the config, and hands its text on to the programs that this process starts, or becomes:
// what it is read from may be a pipe, or be changed meanwhile.
// Throws: ConfigError, ParseError, Error.
config::ReadConfig read_and_hand_on(const TrainCommand& command);
// The same of a text that is in no file; command.config is its name.
config::ReadConfig hand_on(const TrainCommand& command, const std::string& text);
// Reads the text that was handed on; without one, the file.
// Throws: ConfigError, ParseError.
config::ReadConfig read_config_of(const TrainCommand& command);

// The name in "runs/NAME-...": the config file's, without folder and extension.
std::string run_name(const TrainCommand& command);

}  // namespace penstock::cli
