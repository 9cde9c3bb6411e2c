// Decoders that ranks can share so that no number of ranks changes a bit.
//
// Each layer of a decoder asks when it is made.  Knows sizes and kinds, and no tensors.
#pragma once
#include "penstock/nn/decoder.h"
#include "penstock/runtime/nn/making.h"

namespace penstock::nn {

// Throws: ConfigError that lists what would change bits, with the numbers of ranks that work, where
// sums are added in blocks.
void check_bits(const DecoderOptions& options, const Making& making);

}  // namespace penstock::nn
