// `penstock memory`: what a run of a configuration takes on each rank, as a table or as JSON.
//
// main.cpp calls it.  Knows how numbers are shown, not where they come from.
#pragma once
#include "penstock/cli/memory_command.h"

namespace penstock::cli {

// Returns the process's exit code.  Throws: Error for a configuration that cannot train.
int run_memory(const MemoryCommand& command);

}  // namespace penstock::cli
