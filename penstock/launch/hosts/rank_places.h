// The hosts of ranks: runs of ranks, in the hosts' order.
//
// Used by remote_ranks.h.  Knows no connections.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "penstock/launch/hosts/host_run.h"

namespace penstock::hosts {

struct RemoteHost {
  std::string name;
  std::vector<std::string> command;  // Command that connects, and runs `penstock host` there.
  HostRun run;  // Lacks master_addr and master_port while they are to be found.
};

class RankPlaces {
 public:
  // `hosts` outlives this, and is not empty.
  explicit RankPlaces(const std::vector<RemoteHost>& hosts) : hosts_(hosts) {}

  std::size_t first_rank(std::size_t host) const {
    return static_cast<std::size_t>(hosts_[host].run.first_rank);
  }
  // The rank behind the host's last one.
  std::size_t end_rank(std::size_t host) const {
    return first_rank(host) + static_cast<std::size_t>(hosts_[host].run.nproc);
  }
  std::size_t host_of(std::size_t rank) const;
  int local_rank(std::size_t rank) const {
    return static_cast<int>(rank - first_rank(host_of(rank)));
  }
  // "rank 3", "ranks 2 to 5".
  std::string text(std::size_t host) const;

 private:
  const std::vector<RemoteHost>& hosts_;
};

}  // namespace penstock::hosts
