// Bounds of a layout's step time from below, without a simulation.
//
// The planner asks it, so that few layouts are simulated.
// Units: seconds.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/partition/partition.h"
#include "penstock/plan/choose/in_flight.h"
#include "penstock/plan/choose/layer_times.h"
#include "penstock/plan/choose/layout.h"
#include "penstock/plan/choose/step_time.h"

namespace penstock::choose {

// A time that no schedule of this layout beats with these stages: the rank of stage pipe - 1 begins
// when the stages before it have passed a microbatch on, and computes all of its own.
// REQUIRES: stage s < pipe is on rank s, as all schedules here have it.
double least_time(const Layout& layout, const partition::Partition& partition,
                  const std::vector<LayerTimes>& times);

// The number of microbatches that has all costs of a step: of the first, of the last, and of those
// between them.
std::int32_t distinct_microbatches(std::int32_t microbatches);

// A time that no order with the program's homes and backwards beats.  A rank waits for its first
// input, computes without a pause, and then its last output passes the other ranks, or its
// gradients are summed; all update at last.  1F1B with equal stages takes this time, and no longer.
// `inputs` are those of the layout with its distinct_microbatches() alone.
double least_time(const StepInputs& inputs, std::int32_t microbatches, const InFlight& program);

}  // namespace penstock::choose
