// Runs one rank of `penstock generate`.
//
// main.cpp calls it.  Knows no text: what is generated goes to the descriptor that
// generation.h names.
#pragma once
#include "penstock/cli/generation.h"

namespace penstock::cli {

// Returns: as run_rank().
int run_generate(const Generation& generation);

}  // namespace penstock::cli
