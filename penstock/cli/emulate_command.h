// The command line of `penstock emulate`, as both programs read it.
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

struct EmulateCommand {
  AskedRun run;
  std::string device = "h100-sxm";  // A name, or a JSON file of figures.
  // Hosts, and devices on each; empty: as many hosts as the ranks need.
  std::vector<std::int64_t> hosts;
  std::string output;  // Folder for `penstock report`; empty: none.
  bool json = false;
};

// Declares the options on `app`; they are in `command` once the app has parsed.
void declare_emulate(CLI::App& app, EmulateCommand& command);

}  // namespace penstock::cli
