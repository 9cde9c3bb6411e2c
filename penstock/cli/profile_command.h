// The command line of `penstock profile`, as both programs read it.
//
// `penstock` parses it for its help and its errors, and becomes `penstock-runtime`, which parses
// the same words and does it.  Knows no tensors.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/cli/asked_run.h"

namespace penstock::cli {

struct ProfileCommand {
  AskedRun run;
  double seconds = 1.0;      // Seconds for each kind of layer.
  std::int32_t threads = 0;  // 0: as many as the launcher gives one of the ranks on this machine.
  bool by_layer = false;     // Each layer is a stage, in place of those of the configuration.
  std::string output;        // Path of the costs; empty: none are written.
  bool ledger = false;       // Tells where each rank's step goes, in place of layers' times.
  std::int64_t steps = 5;    // Steps of the ledger.
  bool json = false;         // The ledger as JSON.
  std::string device;        // Path of a device's figures, in place of layers' times; or empty.
};

// Declares the options on `app`; they are in `command` once the app has parsed.
void declare_profile(CLI::App& app, ProfileCommand& command);

// Throws: ConfigError where there is neither a configuration nor a device's file, or what does not
// go with it, or with a ledger.
void check(const ProfileCommand& command);

}  // namespace penstock::cli
