// How much an optimizer keeps of what it updates.
//
// update/ makes so many tensors, and whoever tells a run's memory counts them.  Knows no tensors.
#pragma once
#include <cstdint>

#include "penstock/config/config.h"

namespace penstock::config {

// How many tensors of a parameter's size it keeps of each.
std::int32_t states_per_parameter(const OptimizerConfig& options);

// Whether it keeps a count of steps of each, too, in float.
bool counts_steps(const OptimizerConfig& options);

}  // namespace penstock::config
