#include "penstock/plan/choose/network.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace penstock::choose {

const LinkSpeed& Network::between(Rank a, Rank b) const {
  const bool is_one_node =
      ranks_per_node == 0 || a.value / ranks_per_node == b.value / ranks_per_node;
  return is_one_node ? intra : inter;
}

const LinkSpeed& Network::within(Rank first, Rank last) const { return between(first, last); }

LinkSpeed Network::among(Rank first, Rank last, std::int32_t ranks) const {
  LinkSpeed link = within(first, last);
  if (ranks < 2 || ranks_per_node == 0 || !inter.bandwidth || &within(first, last) == &intra) {
    return link;
  }
  const std::int32_t apart = std::max((last.value - first.value) / (ranks - 1), 1);
  const std::int32_t of_node = std::clamp(ranks_per_node / apart, 1, ranks);
  link.bandwidth = *inter.bandwidth * of_node;
  if (intra.bandwidth) link.bandwidth = std::min(*link.bandwidth, *intra.bandwidth);
  return link;
}

namespace {

// Ranks of a group on a node.
std::int32_t of_node(const Network& network, const RankGroup& group) {
  if (network.ranks_per_node == 0) return group.ranks;
  return std::clamp(network.ranks_per_node / group.apart, 1, group.ranks);
}

double message_time(const LinkSpeed& link, double bytes) {
  if (bytes == 0.0) return 0.0;
  return link.latency + (link.bandwidth ? bytes / *link.bandwidth : 0.0);
}

}  // namespace

double all_to_all_time(const Network& network, const RankGroup& group, double bytes) {
  const std::int32_t here = of_node(network, group);
  const double each = bytes / group.ranks;
  return std::max(message_time(network.intra, each * (here - 1)),
                  message_time(network.inter, each * (group.ranks - here)));
}

double by_node_time(const Network& network, const RankGroup& group, double bytes, double copies) {
  const std::int32_t here = of_node(network, group);
  const double nodes = static_cast<double>(group.ranks) / here;
  const double wanted_by = 1.0 - std::pow(1.0 - 1.0 / nodes, copies);  // Chance of each node.
  LinkSpeed inter = network.inter;
  if (network.by_node) inter.bandwidth = network.by_node;
  return std::max(message_time(network.intra, bytes * (here - 1) / here),
                  message_time(inter, bytes / copies * (nodes - 1.0) * wanted_by));
}

double collective_time(const LinkSpeed& link, std::int32_t ranks, double bytes) {
  if (ranks == 1) return 0.0;
  const auto count = static_cast<std::uint32_t>(ranks);
  const double steps = std::bit_width(count - 1);
  const double transfer = link.bandwidth ? bytes * (count - 1) / count / *link.bandwidth : 0.0;
  return steps * link.latency + transfer;
}

double exchange_time(const LinkSpeed& link, std::int64_t sent, std::int64_t exchanges) {
  const double transfer = link.bandwidth ? static_cast<double>(sent) / *link.bandwidth : 0.0;
  return static_cast<double>(exchanges) * link.latency + transfer;
}

}  // namespace penstock::choose
