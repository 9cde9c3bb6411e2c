// A layer in another type: of its parameters, its buffers, and so of what it computes in.
//
// A Stage does it for bf16 and fp16 (train/precision.h), and whoever measures layers as a stage
// runs them.  Knows no masters.
#pragma once
#include <c10/core/ScalarType.h>

#include "penstock/nn/layer.h"

namespace penstock::nn {

// Floating parameters and buffers become tensors of `type`, each the same tensor as before.
void convert(const Layer& layer, at::ScalarType type);

}  // namespace penstock::nn
