// What layers take where ranks share the tokens of each sample: the context axis.
//
// Whoever makes layers asks it.  It takes layers as they are for a rank's own tokens.  Those know
// nothing of the other ranks' tokens, which attention alone looks at.  Knows no links.
// Units: bytes.
// Source: a rank has two of 2c chunks, the i-th from either end, so that all have the same part of
// a causal mask (zigzag: Megatron-LM, Llama 3).  Keys and values are gathered before attention, and
// again in the backward, which hands parts of their gradients back (Llama 3, arXiv 2407.21783,
// section 3.3.2).  Or they go round while blocks of attention work (Liu et al., Ring Attention,
// arXiv 2310.01889), with their gradients in the backward.
#pragma once
#include <cstdint>
#include <string_view>

#include "penstock/plan/memory/layer_memory.h"

namespace penstock::memory {

// Whether so many ranks can share a sample's tokens: each has two chunks of equal length.
bool can_share_tokens(std::int64_t tokens, std::int64_t ranks);

// The way of keys and values by its name: "gather" or "ring".
ExchangeWay context_way(std::string_view name);

// Adds to a layer what `context` ranks do for its attention.  `keys_values`: bytes of the keys and
// values of a rank's own tokens.  A layer without attention, or one rank, stays as it is.
// REQUIRES: `way` is Gather or Ring.
void share_tokens(std::int64_t context, std::int64_t keys_values, ExchangeWay way,
                  LayerMemory& layer);

}  // namespace penstock::memory
