// Finds the file that a program's name stands for, or the reason why it cannot be executed.
//
// Used by launcher.h before it starts anything, and for the error of a failed exec.
#pragma once
#include <string>

#include "penstock/core/error.h"

namespace penstock::launch {

// The path that `name` means: itself when it has a '/', else the first match in `path_variable`.
// Throws ConfigError, with the nearest name and the nearest fix, when nothing executable is there.
std::string resolve_program(const std::string& name, const std::string& path_variable);

// What exec's error number says about a file that resolve_program accepted.
ConfigError exec_error(const std::string& path, int error_number);

}  // namespace penstock::launch
