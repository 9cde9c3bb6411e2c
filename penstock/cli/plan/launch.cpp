#include <unistd.h>

#include <memory>

#include "penstock/cli/plan/commands.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/text.h"
#include "penstock/launch/launcher.h"

namespace penstock::cli {

Command declare_launch_command(CLI::App& app, const Words& program) {
  const auto options = std::make_shared<launch::LaunchOptions>();
  app.add_option("--nproc", options->nproc, "ranks to start")
      ->required()
      ->type_name("N")
      ->check(CLI::Range(1, launch::kRanksMax));
  app.add_option("--log-dir", options->log_dir, "write rank R's output to DIR/rank-R.log")
      ->type_name("DIR");
  app.add_option("--host", options->host, "MASTER_ADDR of the ranks")
      ->capture_default_str()
      ->type_name("ADDRESS");
  app.add_option("--master-port", options->master_port, "MASTER_PORT (default: a free one)")
      ->type_name("PORT")
      ->check(CLI::Range(0, 65535));
  app.add_option(
         "--heartbeat", options->heartbeat_seconds,
         "seconds after which ranks that train with penstock are ended, where one is silent, or "
         "all wait for each other")
      ->capture_default_str()
      ->type_name("SECONDS");
  app.footer(
      "After -- comes the program: penstock launch --nproc 2 -- python3 script.py ARGS\n"
      "Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.");
  return [options, &program] {
    if (program.empty()) {
      throw ConfigError("launch: no program to launch",
                        {"it comes after --: penstock launch --nproc 2 -- python3 script.py"});
    }
    if (!(options->heartbeat_seconds > 0 && options->heartbeat_seconds <= launch::kSecondsMax)) {
      throw ConfigError(str("launch: --heartbeat ", options->heartbeat_seconds,
                            ": must be above 0 and at most ", launch::kSecondsMax));
    }
    options->program = program;
    Output output(STDERR_FILENO);
    OutputStream messages(output);
    options->messages = &messages;
    return launch::launch(*options).exit_code;
  };
}

}  // namespace penstock::cli
