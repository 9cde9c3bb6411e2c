#include "penstock/plan/choose/sharers.h"

namespace penstock::choose {
namespace {

Sharers of(const Network& network, Rank first, std::int32_t ranks, std::int32_t shards,
           std::int32_t apart) {
  const auto link = [&](std::int32_t count, std::int32_t distance) {
    return network.among(first, Rank(first.value + (count - 1) * distance), count);
  };
  const std::int32_t copies = ranks / shards;
  return {.ranks = shards,
          .link = link(shards, apart),
          .copies = copies,
          .copies_link = link(copies, apart * shards)};
}

}  // namespace

double Sharers::summed(double bytes) const {
  const double within = collective_time(link, ranks, bytes);
  if (copies == 1) return within;
  return within + 2.0 * collective_time(copies_link, copies, bytes / ranks);
}

Sharers sharers_of(const Layout& layout, const Network& network, Rank rank) {
  return of(network, rank, layout.sharers(), layout.zero_ranks(), layout.tensor());
}

Sharers expert_sharers_of(const Layout& layout, const Network& network, Rank rank) {
  const std::int32_t apart = layout.experts > 1 ? layout.experts : layout.tensor();
  return of(network, rank, layout.expert_sharers(), layout.expert_zero_ranks(), apart);
}

}  // namespace penstock::choose
