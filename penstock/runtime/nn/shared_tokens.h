// What ranks that share layers have of tokens between these, and the exchanges of it.
//
// Models over tokens describe their pieces with them (decoder.cpp, gpt.cpp).
// Shapes: values are [microbatch, sequence, hidden].
#pragma once
#include <cstddef>

#include "penstock/plan/exchange/pieces.h"

namespace penstock::nn {

// Some tokens each.
inline constexpr exchange::Held kTokens = exchange::cut(/*dimension=*/1);

// Each rank gets all tokens of a value of which it had some.
inline exchange::Exchange gathers(std::size_t value) {
  return {.value = value, .before = kTokens, .after = exchange::kReplicated};
}

// Each rank gets its tokens of the sum of all ranks' summands.
inline exchange::Exchange sums(std::size_t value) {
  return {.value = value, .before = exchange::kPartial, .after = kTokens};
}

}  // namespace penstock::nn
