// What ranks have to have in common, by name and as text, and what of a process is so.
//
// The handshake compares facts; docs/handshake.md lists all of them.  Knows no ranks.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace penstock::train {

using Facts = std::vector<std::pair<std::string, std::string>>;

inline Facts operator+(Facts some, const Facts& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

// What decides on results and is nobody's argument: versions, torch's settings, and the variables
// of the environment that kernels read.
Facts facts_of_process();

// What replicas need that each update their own copy of a parameter: the bits of an update of fixed
// values.  They are others for other CPU kernels, or where small numbers are flushed to zero.
Facts facts_of_host_updates();

// What makes sums of many values come out with the same bits: threads and CPU kernels.
Facts facts_of_bits();

}  // namespace penstock::train
