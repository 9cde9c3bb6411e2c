// `--set KEY=VALUE`, for every command that takes a config.
//
// Short options that set one key are in the same list, with their own names as origins.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "penstock/plan/config/override.h"

namespace penstock::cli {

// `overrides` outlives `app`; `example` is a KEY=VALUE, for the help.
void declare_set(CLI::App& app, std::vector<config::Override>& overrides,
                 const std::string& example);

// A short option that sets one key of the config: "--steps" for "run.steps".
void declare_key(CLI::App& app, std::vector<config::Override>& overrides, const std::string& option,
                 const std::string& key, const std::string& help);

}  // namespace penstock::cli
