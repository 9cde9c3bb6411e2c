// One run of `penstock train` on one rank: from a configuration to weights, metrics and pictures.
//
// cli/ calls it on every rank.  What a run directory holds: docs/run_directory.md.
// Knows no command line and no process launch.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/config/read.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/launch/inject/fault.h"
#include "penstock/runtime/run/run_data.h"

namespace penstock::run {

// How the world outside the run hears of it and speaks to it; any function may be empty.
struct RunHooks {
  Output& results;   // Takes the model's texts.
  Output& messages;  // Takes what happens meanwhile.
  // Failures that the user asks for, and which start of the run this is, from 1.
  std::vector<inject::Fault> faults{};
  std::int64_t start = 1;
  double earlier_seconds = 0;  // Seconds that the run has lasted before this call.
  // The exit code to end with after this step; nothing: go on.
  std::function<std::optional<ExitCode>()> stop_requested;
  // The tokenizer in a model's folder.  Throw ConfigError where it cannot be asked.
  std::function<std::vector<std::int64_t>(const std::string& text, const std::string& folder)>
      tokens_of;
  std::function<std::string(const std::vector<std::int64_t>& tokens, const std::string& folder)>
      text_of;
};

// Trains on `device`, validates, generates, saves.  Collective over all ranks; rank 0 writes the
// files of the run directory, which `config.run.directory` names and which exists. Returns: Ok, or
// the code that a hook asked to stop with. Throws: Error of every kind.
ExitCode run(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
             const RunHooks& hooks);

}  // namespace penstock::run
