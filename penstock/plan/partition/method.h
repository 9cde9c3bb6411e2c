// How a configuration wants its layers cut into stages.
//
// train and the planner read it from here.  Knows no layers.
#pragma once
#include "penstock/config/config.h"
#include "penstock/partition/partition.h"

namespace penstock::partition {

Method method_of(const config::PipelineConfig& pipeline);

}  // namespace penstock::partition
