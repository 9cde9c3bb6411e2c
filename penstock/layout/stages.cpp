#include "penstock/layout/stages.h"

#include "penstock/core/check.h"

namespace penstock::layout {
namespace {

// Smaller gains are rounding.
constexpr double kGain = 1e-9;

bool is_valid(const partition::Partition& partition, std::size_t boundary) {
  const auto& bounds = partition.bounds;
  return bounds[boundary - 1] < bounds[boundary] && bounds[boundary] < bounds[boundary + 1];
}

}  // namespace

CutStages cut_stages(const partition::Partition& start, const TimeOfStages& time_of,
                     std::int32_t simulations_max) {
  const std::optional<double> first = time_of(start);
  PENSTOCK_CHECK(first.has_value());
  CutStages best{.partition = start, .time = *first, .simulated = 1};
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t boundary = 1; boundary + 1 < start.bounds.size(); ++boundary) {
      for (const std::int64_t by : {-1, 1}) {
        partition::Partition next = best.partition;
        next.bounds[boundary] += by;
        if (!is_valid(next, boundary)) continue;
        if (best.simulated == simulations_max) return best;
        ++best.simulated;
        const std::optional<double> time = time_of(next);
        if (!time || *time >= best.time * (1.0 - kGain)) continue;
        best.partition = std::move(next);
        best.time = *time;
        moved = true;
      }
    }
  }
  return best;
}

}  // namespace penstock::layout
