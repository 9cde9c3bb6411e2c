// `penstock profile --ledger`: where each rank's step goes, as a table or as JSON.
//
// profile.cpp calls it.  Runs the configuration's ranks as processes of this machine, on random
// tokens.  Knows how numbers are shown, not how they are measured.
#pragma once
#include "penstock/cli/profile_command.h"
#include "penstock/config/config.h"

namespace penstock::cli {

// Returns the process's exit code.  `threads` are those of a rank.
// Throws: Error for a configuration that cannot train, or a rank that ends.
int run_ledger(const ProfileCommand& command, const config::Config& config, int threads);

}  // namespace penstock::cli
