// The times of messages and collectives between the ranks of a cluster: links within a node and
// between nodes.
//
// Step times are made of it.  Ranks fill nodes in their order.  Knows no schedule and no model.
// Units: seconds, bytes, bytes per second.
// Source: a ring moves (n - 1) / n of the data over its slowest link, which no algorithm that
// leaves each rank a share can beat; its latency here is that of a tree, log2(n) steps, as
// libraries choose for many ranks (Thakur, Rabenseifner, Gropp 2005).  Rings of all links of a node
// together: 16 devices of two nodes reduce at 297 GB/s over links of 25 GB/s each (nccl-tests).
#pragma once
#include <cstdint>
#include <optional>

#include "penstock/core/ids.h"

namespace penstock::choose {

struct LinkSpeed {
  double latency = 0.0;
  std::optional<double> bandwidth = {};  // Absent: unlimited.
};

struct Network {
  LinkSpeed intra;
  LinkSpeed inter;
  std::int32_t ranks_per_node = 0;  // 0: all ranks are on one node.
  std::int32_t cores_per_node = 0;  // 0: each rank has a device of its own.
  // How many times longer computations take while ranks share a core, besides the wait for it: each
  // finds the others' data in the core's caches.
  double crowding = 1.0;

  const LinkSpeed& between(Rank a, Rank b) const;
  // The slowest of a ring of ranks, of which these are the first and the last.
  const LinkSpeed& within(Rank first, Rank last) const;
  // What a collective of so many evenly spaced ranks has: between nodes, each of those that a node
  // has of them takes a ring of its own over its own link.
  LinkSpeed among(Rank first, Rank last, std::int32_t ranks) const;
};

// Seconds of a reduce-scatter, or an all-gather, of so many bytes in all; an all-reduce is one of
// each.
double collective_time(const LinkSpeed& link, std::int32_t ranks, double bytes);

// Seconds of some exchanges between ranks, in which each of them sends so many bytes in all.  The
// messages of one travel together, and share the link.
double exchange_time(const LinkSpeed& link, std::int64_t sent, std::int64_t exchanges);

}  // namespace penstock::choose
