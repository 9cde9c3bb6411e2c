// The command line of `penstock memory`, as both programs read it.
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

struct MemoryCommand {
  AskedRun run;
  bool json = false;
  bool measure = false;     // Runs layers at full size.
  bool parameters = false;  // Prints who has which parameter, instead of how many bytes.
  std::string layers;       // Path of a file of single layers' numbers; empty: none is written.
  // Sizes of a microbatch to measure; empty: the configuration's.
  std::vector<std::int64_t> microbatch_sizes;
  std::vector<std::int32_t> tensor;   // Numbers of ranks that share layers; empty: 1.
  std::vector<std::int32_t> context;  // Numbers of ranks that share tokens; empty: 1.
  std::string context_by = "gather";  // How keys and values reach these: gather or ring.
};

// Declares the options on `app`; they are in `command` once the app has parsed.
void declare_memory(CLI::App& app, MemoryCommand& command);

}  // namespace penstock::cli
