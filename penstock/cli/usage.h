// What is said about a command line that does not parse.
//
// Both programs call it where CLI11 gave up.  Knows no command by name: words come from the app.
#pragma once
#include <CLI/CLI.hpp>

#include "penstock/core/error.h"

namespace penstock::cli {

// The error that `error`, thrown while `app` parsed, means: the word that was not understood, the
// nearest one that would be, and where help is.
ConfigError usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace penstock::cli
