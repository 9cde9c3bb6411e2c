// What one host does in a run: its ranks, their program and their variables.
//
// The launcher tells it to the host once all hosts are connected (frame.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/launch/hosts/environment_file.h"
#include "penstock/launch/launcher.h"

namespace penstock::hosts {

struct HostRun {
  std::string folder;                          // Folder in which the program runs.
  std::vector<std::string> program;            // Words.
  std::optional<std::size_t> local_rank_word;  // Same as launch::LaunchOptions's.
  Variables variables;
  std::string job_id;
  std::string log_dir;  // Folder on the host; "": output goes to the launcher.
  int first_rank = 0;
  int nproc = 1;
  int world_size = 1;
  int host = 0;             // The number of this one.
  int hosts = 1;            // Hosts of the run.
  std::string peer;         // Another host's address or name, for the way to it; "": there is none.
  std::string master_addr;  // "": the host finds its own, by the way to `peer`.
  std::uint16_t master_port = 0;  // 0: the host chooses a free one.  REQUIRES: not 0 but on host 0.
  double heartbeat_seconds = 30;
  double grace_seconds = 3;
  friend bool operator==(const HostRun&, const HostRun&) = default;
};

// parse_host_run(encode(r)) == r.
std::string encode(const HostRun& run);
// Nothing for what encode() could not have written.
std::optional<HostRun> parse_host_run(std::string_view encoded);

// Options for the ranks of that host, with the variables LOCAL_SIZE, CROSS_RANK and CROSS_SIZE of
// DeepSpeed's launcher.
launch::LaunchOptions launch_options(const HostRun& run);

}  // namespace penstock::hosts
