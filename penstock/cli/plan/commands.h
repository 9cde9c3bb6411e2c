// The subcommands of the torch-free program, a file each.
//
// main.cpp declares all of them; each returns the process's exit code or throws Error.
#pragma once
#include <functional>

#include <CLI/CLI.hpp>

namespace penstock::cli {

// Declares itself on `app`; the returned function runs it after parsing.
using Command = std::function<int()>;

Command declare_train_command(CLI::App& app);
Command declare_launch_command(CLI::App& app);
Command declare_schedule_command(CLI::App& app);

}  // namespace penstock::cli
