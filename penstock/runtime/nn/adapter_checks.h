// Finds what is wrong with the adapters that a decoder is to have, before a layer is made.
//
// decoder.h asks.  Knows names and shapes alone.
#pragma once
#include "penstock/nn/decoder.h"

namespace penstock::nn {

// Throws: ConfigError, with the names, for targets that are no linears of the model, or misspelt
// ones beside others; for whole modules that it has not, that have adapters, or that are tied.
void check_adapters(const DecoderOptions& options);

}  // namespace penstock::nn
