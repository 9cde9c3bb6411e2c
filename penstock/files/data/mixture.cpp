#include "penstock/files/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::data {
namespace {

constexpr std::size_t kSourcesMax = 4096;

// Whole numbers in the ratio of the weights, whose sum is `total`.
std::vector<std::int64_t> round_shares(const std::vector<double>& weights, std::int64_t total) {
  const double largest = *std::ranges::max_element(weights);
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  std::vector<std::int64_t> parts;
  std::vector<std::pair<double, std::size_t>> remainders;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] / largest / sum * static_cast<double>(total);
    parts.push_back(static_cast<std::int64_t>(share));
    remainders.emplace_back(static_cast<double>(parts.back()) - share, i);
  }
  std::ranges::sort(remainders);  // The largest first; of equal ones the first source's.
  std::int64_t left = total - std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  for (const auto& [remainder, i] : remainders) {
    if (left-- <= 0) break;
    ++parts[i];
  }
  return parts;
}

}  // namespace

Mixture::Mixture(const std::vector<double>& weights) {
  PENSTOCK_CHECK(!weights.empty());
  if (weights.size() > kSourcesMax) {
    throw ConfigError(
        str("data.sources: ", weights.size(), " sources; at most ", kSourcesMax, " are mixed"));
  }
  if (weights.size() == 1) {
    parts_ = {1};
    slots_ = {{.source = 0, .ordinal = 0}};
    return;
  }
  parts_ = round_shares(weights, kMixturePeriod);
  // Sample i of n of a source has its place at (2 i + 1) / 2 n of the period.
  struct Wanted {
    double at;
    Slot slot;
  };
  std::vector<Wanted> wanted;
  for (std::size_t source = 0; source < parts_.size(); ++source) {
    const std::int64_t n = parts_[source];
    if (n == 0) {
      throw ConfigError(str("data.sources[", source, "].weight = ", shortest(weights[source]),
                            ": too small beside the others; a source needs at least 1/",
                            kMixturePeriod, " of all weights"));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      wanted.push_back({static_cast<double>(2 * i + 1) / static_cast<double>(2 * n),
                        {static_cast<std::uint32_t>(source), static_cast<std::uint32_t>(i)}});
    }
  }
  std::ranges::stable_sort(wanted, {}, &Wanted::at);
  for (const Wanted& each : wanted) slots_.push_back(each.slot);
}

Mixture::Place Mixture::place(std::int64_t sample) const {
  const std::int64_t period = sample / std::ssize(slots_);
  const Slot& slot = slots_[static_cast<std::size_t>(sample % std::ssize(slots_))];
  return {.source = slot.source, .ordinal = period * parts_[slot.source] + slot.ordinal};
}

}  // namespace penstock::data
