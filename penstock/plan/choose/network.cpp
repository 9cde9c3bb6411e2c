#include "penstock/plan/choose/network.h"

#include <algorithm>
#include <bit>

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
