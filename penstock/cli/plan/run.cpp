#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "penstock/cli/input_file.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/text.h"
#include "penstock/launch/hosts/host_agent.h"
#include "penstock/launch/hosts/run_on_hosts.h"
#include "penstock/launch/program.h"
#include "penstock/launch/rank_environment.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsualHostfile = "/job/hostfile";
constexpr std::size_t kFileBytesMax = hosts::kHostfileBytesMax;

struct RunCommand {
  std::string hostfile;
  hosts::Selection selection;
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::string launcher = "ssh";
  std::string launcher_args;
  std::optional<int> ssh_port;
  std::string ssh_command;
  std::string penstock;
  std::string log_dir;
  double heartbeat_seconds = 30;
  bool is_module = false;
  bool is_program = false;
  bool has_local_rank = true;
  bool swaps = false;
  bool is_ignored = false;
};

std::vector<std::string> blank_separated(const std::string& text) {
  std::vector<std::string> words = split(text, ' ');
  std::erase(words, "");
  return words;
}

std::vector<hosts::Host> hosts_of(const RunCommand& command) {
  std::error_code error;
  const bool has_usual = command.hostfile.empty() && fs::is_regular_file(kUsualHostfile, error);
  const std::string path = has_usual ? kUsualHostfile : command.hostfile;
  if (!path.empty()) {
    const InputFile file = read_input("hostfile", path, kFileBytesMax);
    return hosts::parse_hostfile(file.text, file.name);
  }
  // This machine alone, with as many slots as are asked for.
  return {{"localhost", command.selection.num_gpus > 0 ? command.selection.num_gpus : 1}};
}

// Variables of DeepSpeed's files: the user's, then this folder's, which wins.
hosts::Variables variables_of_files() {
  const char* const named = std::getenv("DS_ENV_FILE");
  const std::string name = named == nullptr ? ".deepspeed_env" : named;
  const char* const home = std::getenv("HOME");
  hosts::Variables found;
  std::vector<std::string> paths;
  if (home != nullptr && !name.starts_with('/')) paths.push_back(str(home, "/", name));
  paths.push_back(name);
  std::error_code error;
  for (const std::string& path : paths) {
    if (!fs::is_regular_file(path, error)) continue;
    const InputFile file = read_input("environment file", path, kFileBytesMax);
    std::ranges::move(hosts::parse_environment_file(file.text, path), std::back_inserter(found));
  }
  return found;
}

std::string python_of_ranks() {
  const char* const chosen = std::getenv("PENSTOCK_PYTHON");
  const char* const path = std::getenv("PATH");
  return launch::resolve_program(chosen == nullptr ? "python3" : chosen,
                                 path == nullptr ? "" : path);
}

// The words of every rank, and where "--local_rank" stands in them.
void take_program(const RunCommand& command, const Words& words, bool is_any_program,
                  hosts::HostsOptions& options) {
  options.program = words;
  if (is_any_program || command.is_program) {
    if (command.is_program && command.has_local_rank) options.local_rank_word = 1;
    return;
  }
  std::vector<std::string> before = {python_of_ranks(), "-u"};
  if (command.swaps) before.insert(before.end(), {"-m", "penstock.swap"});
  if (command.is_module) before.push_back("-m");
  options.program.insert(options.program.begin(), before.begin(), before.end());
  if (command.has_local_rank) options.local_rank_word = before.size() + 1;
}

void check(const RunCommand& command, const Words& words) {
  if (words.empty()) {
    throw ConfigError("run: no script to run",
                      {"penstock run --hostfile hosts train.py ARGS",
                       "another program comes after --: penstock run --hostfile hosts -- penstock "
                       "train gpt.json"});
  }
  constexpr double kLeast = 2;  // Hosts say something each second.
  if (!(command.heartbeat_seconds >= kLeast && command.heartbeat_seconds <= launch::kSecondsMax)) {
    throw ConfigError(str("run: --heartbeat ", command.heartbeat_seconds, ": must be from ", kLeast,
                          " to ", launch::kSecondsMax));
  }
  if (command.launcher != "ssh" && command.launcher != "pdsh") {
    throw ConfigError(str("run: --launcher ", command.launcher, ": hosts are reached by ssh"),
                      {"mpirun and Slurm's srun start ranks themselves: docs/launching.md"});
  }
  if (command.is_module && (command.is_program || command.swaps)) {
    throw ConfigError(str("run: --module with ", command.is_program ? "--no_python" : "--swap",
                          ": take one of them"));
  }
}

int run(const RunCommand& command, const Words& words, bool is_any_program) {
  check(command, words);
  hosts::HostsOptions options{.hosts = hosts::choose_hosts(hosts_of(command), command.selection),
                              .variables = hosts::exported(launch::process_environment()),
                              .log_dir = command.log_dir,
                              .master_addr = command.master_addr,
                              .master_port = command.master_port,
                              .heartbeat_seconds = command.heartbeat_seconds};
  const int ranks = hosts::count_ranks(options.hosts);
  if (ranks > launch::kRanksMax) {
    throw ConfigError(str("run: ", ranks, " ranks: at most ", launch::kRanksMax, " are started"));
  }
  std::ranges::move(variables_of_files(), std::back_inserter(options.variables));
  take_program(command, words, is_any_program, options);
  options.penstock = command.penstock.empty() ? own_program() : command.penstock;
  options.ssh = command.ssh_command.empty()
                    ? hosts::plain_ssh(command.ssh_port, blank_separated(command.launcher_args))
                    : blank_separated(command.ssh_command);
  Output output(STDERR_FILENO);
  OutputStream messages(output);
  if (command.launcher == "pdsh") {
    messages << "penstock: --launcher pdsh: ssh is used, because pdsh hands no input on, by which "
                "hosts learn when to end"
             << std::endl;
  }
  options.messages = &messages;
  return hosts::run_on_hosts(options).exit_code;
}

void declare_hosts(CLI::App& app, RunCommand& command) {
  app.add_option("-H,--hostfile", command.hostfile, "hosts, a line NAME slots=N each")
      ->type_name("FILE");
  app.add_option("-i,--include", command.selection.include, "these alone: \"a@b:0,2\"")
      ->type_name("HOSTS");
  app.add_option("-e,--exclude", command.selection.exclude, "all but these")->type_name("HOSTS");
  app.add_option("--num_nodes,--num-nodes", command.selection.num_nodes, "the first N hosts")
      ->type_name("N")
      ->check(CLI::Range(1, hosts::kSlotsMax));
  app.add_option("--num_gpus,--num-gpus,--num_accelerators", command.selection.num_gpus,
                 "the first N slots of each host; without a hostfile, ranks on this machine")
      ->type_name("N")
      ->check(CLI::Range(1, hosts::kSlotsMax));
}

void declare_connections(CLI::App& app, RunCommand& command) {
  app.add_option("--master_addr,--master-addr", command.master_addr,
                 "MASTER_ADDR of the ranks (default: the first host's, on the way to the second)")
      ->type_name("ADDRESS");
  app.add_option("--master_port,--master-port", command.master_port,
                 "MASTER_PORT (default: a free one of the first host)")
      ->type_name("PORT")
      ->check(CLI::Range(0, 65535));
  app.add_option("--launcher", command.launcher, "ssh; pdsh is taken for it")
      ->capture_default_str()
      ->type_name("NAME");
  app.add_option("--launcher_args,--launcher-args", command.launcher_args, "more options of ssh")
      ->type_name("WORDS");
  app.add_option("--ssh_port,--ssh-port", command.ssh_port, "where sshd listens")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535));
  app.add_option("--ssh-command", command.ssh_command,
                 "in place of ssh and its options: WORDS HOST COMMAND")
      ->type_name("WORDS");
  app.add_option("--penstock", command.penstock,
                 "this program on every host (default: the path that it has here)")
      ->type_name("PATH");
}

void declare_program(CLI::App& app, RunCommand& command) {
  app.add_flag("--swap", command.swaps, "run SCRIPT by python -m penstock.swap");
  app.add_flag("--module", command.is_module, "SCRIPT is a module's name: python -m");
  app.add_flag("--no_python,--no-python", command.is_program, "SCRIPT is a program");
  app.add_flag("--no_local_rank{false},--no-local-rank{false}", command.has_local_rank,
               "do not pass --local_rank=N to SCRIPT");
  app.add_flag("--no_ssh_check,--force_multi", command.is_ignored, "taken, and not used");
  app.add_option("--log-dir,--enable_each_rank_log", command.log_dir,
                 "rank R writes to DIR/rank-R.log of its host")
      ->type_name("DIR");
  app.add_option("--heartbeat", command.heartbeat_seconds,
                 "seconds of silence after which a host, or a penstock program, is given up")
      ->capture_default_str()
      ->type_name("SECONDS");
}

}  // namespace

Command declare_run_command(CLI::App& app, const Words& program, const bool& is_any_program) {
  const auto command = std::make_shared<RunCommand>();
  declare_hosts(app, *command);
  declare_connections(app, *command);
  declare_program(app, *command);
  app.footer(
      "Usage: penstock run [OPTIONS] SCRIPT [ARGS]          a Python script, as deepspeed runs it\n"
      "       penstock run [OPTIONS] -- PROGRAM [ARGS]      any program\n"
      "Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and those of\n"
      ".deepspeed_env.  docs/launching.md has the rest.");
  return [command, &program, &is_any_program] { return run(*command, program, is_any_program); };
}

Command declare_host_command(CLI::App& app) {
  app.group("");  // Started by `penstock run`, not by people.
  return [] { return hosts::serve_host(STDIN_FILENO, STDOUT_FILENO); };
}

}  // namespace penstock::cli
