#include "penstock/launch/hosts/run_on_hosts.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <filesystem>

#include "penstock/core/output.h"
#include "penstock/core/text.h"
#include "penstock/launch/hosts/remote_ranks.h"
#include "penstock/launch/rank_environment.h"

namespace penstock::hosts {
namespace {

// Quotes a word for the shell of another host, whichever that is.
std::string shell_word(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string this_host() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), HOST_NAME_MAX);
  return name.data();
}

HostRun run_of(const HostsOptions& options, std::size_t host, int first_rank,
               const std::string& job_id) {
  const ChosenHost& chosen = options.hosts[host];
  HostRun run{.folder = std::filesystem::current_path().string(),
              .program = options.program,
              .local_rank_word = options.local_rank_word,
              .variables = options.variables,
              .job_id = job_id,
              .log_dir = options.log_dir,
              .first_rank = first_rank,
              .nproc = static_cast<int>(chosen.slot_numbers.size()),
              .world_size = count_ranks(options.hosts),
              .host = static_cast<int>(host),
              .hosts = static_cast<int>(options.hosts.size()),
              .master_addr = options.master_addr,
              .master_port = options.master_port,
              .heartbeat_seconds = options.heartbeat_seconds};
  if (chosen.are_chosen) {
    run.variables.emplace_back("CUDA_VISIBLE_DEVICES", join(chosen.slot_numbers, ","));
  }
  return run;
}

std::vector<std::string> command_of(const HostsOptions& options, const ChosenHost& host) {
  if (is_this_machine(host.name)) return {options.penstock, "host"};
  std::vector<std::string> words = options.ssh;
  words.push_back(host.name);
  words.push_back(str("exec ", shell_word(options.penstock), " host"));
  return words;
}

std::vector<RemoteHost> remote_hosts(const HostsOptions& options) {
  const std::string job_id = launch::make_job_id();
  std::vector<RemoteHost> hosts;
  int first_rank = 0;
  for (std::size_t i = 0; i < options.hosts.size(); ++i) {
    const ChosenHost& host = options.hosts[i];
    hosts.push_back({.name = host.name,
                     .command = command_of(options, host),
                     .run = run_of(options, i, first_rank, job_id)});
    first_rank += hosts.back().run.nproc;
  }
  return hosts;
}

}  // namespace

std::vector<std::string> plain_ssh(std::optional<int> port,
                                   const std::vector<std::string>& others) {
  std::vector<std::string> words = {"ssh", "-T"};
  for (const char* option :
       {"BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=10", "ServerAliveCountMax=3"}) {
    words.insert(words.end(), {"-o", option});
  }
  if (port) words.insert(words.end(), {"-p", std::to_string(*port)});
  words.insert(words.end(), others.begin(), others.end());
  return words;
}

bool is_this_machine(const std::string& host) {
  return host == "localhost" || host == "127.0.0.1" || host == this_host();
}

launch::LaunchResult run_on_hosts(const HostsOptions& options) {
  const std::vector<RemoteHost> hosts = remote_hosts(options);
  const RemoteOptions remote{.connect_seconds = options.connect_seconds,
                             .heartbeat_seconds = options.heartbeat_seconds,
                             .job = join(options.ssh, " ") + " "};
  launch::LaunchOptions watched{.nproc = count_ranks(options.hosts),
                                .program = options.program,
                                .heartbeat_seconds = options.heartbeat_seconds,
                                .messages = options.messages};
  Output output(STDOUT_FILENO);
  Output errors(STDERR_FILENO);
  launch::Observation seen;
  RemoteRanks ranks(hosts, remote, seen, output, errors);
  return launch::watch(watched, ranks, seen);
}

}  // namespace penstock::hosts
