// What both programs say when they cannot go on: about a command line that does not parse, and
// about an error that reached main().
//
// Knows no command by name: words come from the app.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>

#include "penstock/core/error.h"

namespace penstock::cli {

// The error that `error`, thrown while `app` parsed, means: the word that was not understood, the
// nearest one that would be, and where help is.
ConfigError usage_error(const CLI::App& app, const CLI::ParseError& error);

// What `program` returns; or, when it throws, the exit code of the error, which is said on stderr.
int exit_code_of(const std::function<int()>& program);

}  // namespace penstock::cli
