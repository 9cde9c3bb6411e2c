#include "penstock/plan/choose/network.h"

#include <bit>

namespace penstock::choose {

const LinkSpeed& Network::between(Rank a, Rank b) const {
  const bool is_one_node =
      ranks_per_node == 0 || a.value / ranks_per_node == b.value / ranks_per_node;
  return is_one_node ? intra : inter;
}

const LinkSpeed& Network::within(Rank first, Rank last) const { return between(first, last); }

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
