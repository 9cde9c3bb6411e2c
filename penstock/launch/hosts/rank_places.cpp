#include "penstock/launch/hosts/rank_places.h"

#include "penstock/core/text.h"

namespace penstock::hosts {

std::size_t RankPlaces::host_of(std::size_t rank) const {
  std::size_t host = hosts_.size() - 1;
  while (first_rank(host) > rank) --host;
  return host;
}

std::string RankPlaces::text(std::size_t host) const {
  const std::size_t first = first_rank(host);
  const std::size_t last = end_rank(host) - 1;
  return first == last ? str("rank ", first) : str("ranks ", first, " to ", last);
}

}  // namespace penstock::hosts
