// Runs one rank of `penstock generate`.
//
// main.cpp calls it.  Knows no text: what is generated goes to the descriptor that
// generate_command.h names.
#pragma once
#include "penstock/cli/generate_command.h"

namespace penstock::cli {

// Returns: as run_rank().
int run_generate(const GenerateCommand& command);

}  // namespace penstock::cli
