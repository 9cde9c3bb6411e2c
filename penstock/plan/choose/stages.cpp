#include "penstock/plan/choose/stages.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "penstock/core/check.h"

namespace penstock::choose {
namespace {

// Smaller gains are rounding.
constexpr double kGain = 1e-9;

// Boundaries first, ..., first + count - 1 by a layer; nothing where a stage is empty then.
std::optional<partition::Partition> moved(const partition::Partition& partition, std::size_t first,
                                          std::size_t count, std::int64_t by) {
  partition::Partition next = partition;
  for (std::size_t i = first; i < first + count; ++i) next.bounds[i] += by;
  const bool is_full = next.bounds[first - 1] < next.bounds[first] &&
                       next.bounds[first + count - 1] < next.bounds[first + count];
  if (!is_full) return {};
  return next;
}

// The moves, those of single boundaries first.
struct Move {
  std::size_t first = 1;
  std::size_t count = 1;
  std::int64_t by = 0;
};

std::vector<Move> moves(std::size_t boundaries) {
  std::vector<Move> all;
  for (std::size_t count = 1; count <= boundaries; ++count) {
    for (std::size_t first = 1; first + count <= boundaries + 1; ++first) {
      for (const std::int64_t by : {-1, 1}) all.push_back({first, count, by});
    }
  }
  return all;
}

}  // namespace

CutStages cut_stages(const partition::Partition& start, const TimeOfStages& time_of,
                     std::int32_t simulations_max) {
  const std::optional<double> first = time_of(start);
  PENSTOCK_CHECK(first.has_value());
  CutStages best{.partition = start, .time = *first, .simulated = 1};
  const std::vector<Move> all = moves(start.bounds.size() - 2);
  // Round and round, until a whole round gains nothing.
  std::size_t in_vain = 0;
  for (std::size_t i = 0; in_vain < all.size(); i = (i + 1) % all.size()) {
    const Move& move = all[i];
    ++in_vain;
    auto next = moved(best.partition, move.first, move.count, move.by);
    if (!next) continue;
    if (best.simulated == simulations_max) break;
    ++best.simulated;
    const std::optional<double> time = time_of(*next);
    if (!time || *time >= best.time * (1.0 - kGain)) continue;
    best.partition = std::move(*next);
    best.time = *time;
    in_vain = 0;
  }
  return best;
}

}  // namespace penstock::choose
