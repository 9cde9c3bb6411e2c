// A stage of parameters that somebody else's module has.
//
// The sums of gradients over replicas are written for stages; ModuleReplica makes one of what it is
// given.  It runs nothing.
#pragma once
#include <vector>

#include "penstock/stage/stage.h"

namespace penstock::train {

// Its parameters() are `parameters`: the same tensors, in their order.
// REQUIRES: each requires a gradient, and is there once; a name is "LAYER.PARAMETER".
stage::Stage stage_of(const std::vector<stage::NamedParameter>& parameters);

}  // namespace penstock::train
