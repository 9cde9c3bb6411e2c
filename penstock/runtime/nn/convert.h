// Converts a layer's parameters and buffers to another type, in which it then computes.
//
// A Stage does it for bf16 and fp16 (train/precision.h), and whoever measures layers as a stage
// runs them.  Knows no masters.
#pragma once
#include <c10/core/ScalarType.h>

#include "penstock/nn/layer.h"

namespace penstock::nn {

// Makes floating parameters and buffers tensors of `type`; each stays the same tensor object.
void convert(const Layer& layer, at::ScalarType type);

}  // namespace penstock::nn
