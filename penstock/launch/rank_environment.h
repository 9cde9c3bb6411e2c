// The variables of one rank, from the launcher's own and the options.
//
// Used by launcher.h; starts nothing and reads no environment itself.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/launch/launcher.h"

namespace penstock::launch {

struct RankVariables {
  int local_rank = 0;
  std::uint16_t master_port = 0;
  int control_fd = -1;
  std::optional<int> store_fd{};  // Rank 0 only.
  std::string job_id{};
};

// "NAME=value" of every variable.  Those of an enclosing launcher that would win over ours, or make
// the program look for a store that does not exist, are left out.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const LaunchOptions& options, const RankVariables& own);

// The threads of each of `nproc` ranks that share this machine's cores; 1 where there are fewer
// cores.
int threads_of_rank(int nproc);

// This process's variables.
std::vector<std::string> process_environment();

// An id that no other run has.
std::string make_job_id();

}  // namespace penstock::launch
