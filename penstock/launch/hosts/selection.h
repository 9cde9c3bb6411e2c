// The hosts of a hostfile that a run takes, and their slots.
//
// The grammar of --include and --exclude is DeepSpeed's: NAME[:SLOT,...], joined by '@'.  Knows no
// ranks: they follow in the order of what is chosen.
#pragma once
#include <string>
#include <vector>

#include "penstock/launch/hosts/hostfile.h"

namespace penstock::hosts {

struct Selection {
  std::string include;  // "worker-1@worker-2:0,2": these alone; "": all.
  std::string exclude;  // "worker-2:1": all but these.
  int num_nodes = 0;    // The first so many hosts; 0: all.
  int num_gpus = 0;     // The first so many slots of each; 0: all.
};

struct ChosenHost {
  std::string name;
  std::vector<int> slot_numbers;  // Sorted, none twice.
  bool are_chosen = false;        // Chosen by include or exclude, and not as they come.
  friend bool operator==(const ChosenHost&, const ChosenHost&) = default;
};

// Hosts in the hostfile's order; never empty.
// Throws: ConfigError for hosts and slots that are none, for a selection that leaves nothing, and
// for options that exclude each other.
std::vector<ChosenHost> choose_hosts(const std::vector<Host>& hosts, const Selection& selection);

// Number of ranks over all hosts: one in each slot.
int count_ranks(const std::vector<ChosenHost>& hosts);

}  // namespace penstock::hosts
