// Runs a program's ranks on hosts that are reached by ssh, as launch::launch() does on one machine.
//
// `penstock run` (cli/) is this behind a command line.  On each host a penstock of the same version
// is at the same path, and the program's folder has the same name.
//
// A run ends as launcher.h says: one root cause, which names the rank and its host.  It ends, too,
// when a host cannot be reached, is silent for heartbeat_seconds, or its connection ends.  Then,
// and when this process is killed, every host ends its ranks by itself (host_agent.h).
#pragma once
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "penstock/launch/hosts/environment_file.h"
#include "penstock/launch/hosts/selection.h"
#include "penstock/launch/launcher.h"

namespace penstock::hosts {

struct HostsOptions {
  std::vector<ChosenHost> hosts;     // Not empty; ranks follow in this order.
  std::vector<std::string> program;  // Words; the first is found on each host.
  std::optional<std::size_t> local_rank_word{};
  Variables variables{};          // Variables for all ranks.
  std::string log_dir{};          // Folder on each host; "": output comes here.
  std::string master_addr{};      // "": found out on the first host.
  std::uint16_t master_port = 0;  // 0: a free one of the first host.
  // Words that connect; a host's name and a command for its shell follow.
  std::vector<std::string> ssh = {"ssh"};
  std::string penstock{};  // The program on each host.
  double connect_seconds = 60;
  double heartbeat_seconds = 30;
  std::ostream* messages = nullptr;  // What a user should see, and the summary.
};

// The words of ssh with the options that a launcher needs: it asks nothing, and notices a silent
// network.
std::vector<std::string> plain_ssh(std::optional<int> port, const std::vector<std::string>& others);

// Whether it is this machine by its name: "localhost", "127.0.0.1", or what this host is called.
bool is_this_machine(const std::string& host);

// Throws: ConfigError where no process can be started here.
launch::LaunchResult run_on_hosts(const HostsOptions& options);

}  // namespace penstock::hosts
