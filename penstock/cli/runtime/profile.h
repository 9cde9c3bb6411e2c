// `penstock profile`: how long the layers of a configuration's model take here, as a table and as
// costs.
//
// main.cpp calls it.  Knows how numbers are shown and added up, not how they are measured.
#pragma once
#include "penstock/cli/profile_command.h"

namespace penstock::cli {

// Returns the process's exit code.  Throws: Error for a configuration that cannot train.
int run_profile(const ProfileCommand& command);

}  // namespace penstock::cli
