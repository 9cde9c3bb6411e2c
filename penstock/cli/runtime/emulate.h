// `penstock emulate`: a step of a configuration on devices that are not there, as tables or JSON.
//
// main.cpp calls it.  Knows how numbers are shown, not where they come from.
#pragma once
#include "penstock/cli/emulate_command.h"

namespace penstock::cli {

// Returns the process's exit code.  Throws: Error for a configuration that cannot train.
int run_emulate(const EmulateCommand& command);

}  // namespace penstock::cli
