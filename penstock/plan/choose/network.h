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
  // Bytes a second that kernels reach between nodes which send a token once to each; absent: those
  // of `inter`.
  std::optional<double> by_node = {};
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

// Ranks at even distances, the first of which begins a node.
struct RankGroup {
  std::int32_t ranks = 1;
  std::int32_t apart = 1;  // 1: their numbers follow each other.

  Rank last() const { return Rank((ranks - 1) * apart); }
};

// Seconds of an exchange in which each rank of a group has a message for every other one, of so
// many bytes in all, the one that stays with it included.  What goes to ranks of the same node
// travels beside what goes to other nodes.
double all_to_all_time(const Network& network, const RankGroup& group, double bytes);
// The same where `copies` messages carry the same, each to a rank by chance, and what ranks of a
// node want crosses between nodes once.
// Source: DeepSeek-V3, arXiv 2412.19437, section 3.2.2.
double by_node_time(const Network& network, const RankGroup& group, double bytes, double copies);

// Seconds of a reduce-scatter, or an all-gather, of so many bytes in all; an all-reduce is one of
// each.
double collective_time(const LinkSpeed& link, std::int32_t ranks, double bytes);

// Seconds of some exchanges between ranks, in which each of them sends so many bytes in all.  The
// messages of one travel together, and share the link.
double exchange_time(const LinkSpeed& link, std::int64_t sent, std::int64_t exchanges);

}  // namespace penstock::choose
