// A hash of a tensor's values, for comparison between ranks.
//
// Ranks tell each other these instead of values: of layers that they have made, and of what a
// program has set.  Knows no ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace penstock::stage {

// The same for the same bits.  Empty for a tensor without elements or without memory.
std::string hash_of_values(const at::Tensor& tensor);

}  // namespace penstock::stage
