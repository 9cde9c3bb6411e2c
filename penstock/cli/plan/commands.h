// The subcommands of the torch-free program, a file each.
//
// main.cpp declares all of them; each returns the process's exit code or throws Error.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace penstock::cli {

// Declares itself on `app`; the returned function runs it after parsing.
using Command = std::function<int()>;

// Words of a command line.
using Words = std::vector<std::string>;

Command declare_train_command(CLI::App& app);
Command declare_evaluate_command(CLI::App& app);
Command declare_generate_command(CLI::App& app);
// `program`: the words of another program's, which no option parser may touch.
Command declare_launch_command(CLI::App& app, const Words& program);
// is_any_program: `program` came after "--"; else it is a script.  Both are read when it runs.
Command declare_run_command(CLI::App& app, const Words& program, const bool& is_any_program);
Command declare_host_command(CLI::App& app);
Command declare_schedule_command(CLI::App& app);
Command declare_compare_command(CLI::App& app);  // schedule compare
Command declare_diff_command(CLI::App& app);     // schedule diff
Command declare_reroute_command(CLI::App& app);  // schedule reroute
Command declare_simulate_command(CLI::App& app);
Command declare_search_command(CLI::App& app);
Command declare_plan_command(CLI::App& app);
Command declare_report_command(CLI::App& app);
Command declare_config_command(CLI::App& app);
// `own`: the words of the whole command, "memory" first; read when it runs.
Command declare_verify_command(CLI::App& app, const Words& own);
Command declare_memory_command(CLI::App& app, const Words& own);
Command declare_profile_command(CLI::App& app, const Words& own);
Command declare_emulate_command(CLI::App& app, const Words& own);
Command declare_checkpoint_command(CLI::App& app);
Command declare_selftest_command(CLI::App& app);

}  // namespace penstock::cli
