#include "penstock/plan/render/shares.h"

#include <algorithm>

namespace penstock::render {

std::vector<OpShares> shares_of(const std::vector<Bar>& bars, double end, std::size_t count) {
  std::vector<OpShares> shares(count, OpShares{});
  const double stretches = static_cast<double>(count) / end;  // Stretches per unit of time.
  for (const Bar& bar : bars) {
    const auto op = static_cast<std::size_t>(bar.action.op);
    const double from = bar.start * stretches;
    const double to = bar.end * stretches;
    for (auto i = static_cast<std::size_t>(from); i < count; ++i) {
      const auto begin = static_cast<double>(i);
      if (begin >= to) break;
      shares[i][op] += std::min(to, begin + 1) - std::max(from, begin);
    }
  }
  return shares;
}

}  // namespace penstock::render
