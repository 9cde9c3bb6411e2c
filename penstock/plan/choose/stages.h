// Layers to stages for a given order of a pipeline: the cut with the shortest simulated step.
//
// The planner cuts its best layouts with it.  Begins with the cut that balances the stages' work
// (partition/).  Moves one boundary, or some that follow each other, by one layer, while that is
// faster.  A balanced cut is not the best one if stages on one rank make up for each other, or an
// end of the pipeline waits less.  A better cut that needs two unlike moves is missed.  Knows no
// layout.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "penstock/partition/partition.h"

namespace penstock::choose {

// The time of a step with such stages; nothing where they do not fit.
using TimeOfStages = std::function<std::optional<double>(const partition::Partition&)>;

struct CutStages {
  partition::Partition partition;
  double time = 0.0;
  std::int32_t simulated = 0;  // Partitions whose time was asked for.
};

// Searches from `start`, asking for at most `simulations_max` times.  The result depends on the
// arguments alone.  REQUIRES: time_of(start) is there.
CutStages cut_stages(const partition::Partition& start, const TimeOfStages& time_of,
                     std::int32_t simulations_max);

}  // namespace penstock::choose
