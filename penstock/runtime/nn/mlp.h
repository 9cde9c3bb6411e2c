// The MLP of the pipeline benchmarks: blocks of Linear(d, d), ReLU, Linear(d, d).
//
// bench/ and tests use it; torch's and DeepSpeed's own pipeline tests have the same block.
// Shapes: [microbatch, width] in and out.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/nn/layer.h"

namespace penstock::nn {

// `blocks` specs "0", "1", ...; initialised as torch::nn::Linear does.
std::vector<LayerSpec> mlp_layers(std::int64_t width, std::int64_t blocks);

}  // namespace penstock::nn
