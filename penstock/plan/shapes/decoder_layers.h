// What the layers of a decoder with experts take and launch, by formula: nobody can run them yet.
//
// `penstock plan` asks it.  They are those of a program with fused kernels.  Products add gradients
// to their sums; attention, norms, activations and rotary positions are a kernel each.  The experts
// of a rank are one product.  Ranks that share weights cut the tokens between layers.
// Units: bytes, operations.
// Model: a rank's tokens go to the ranks of their experts and back, of which each has as many
// experts, whole.  Where no ranks share experts, those that share weights cut each expert.  Keys
// and values of fewer heads than ranks are on several of these.
// Source: Korthikanti et al. 2022, section 4 (what is kept); Shazeer et al. 2017, Lepikhin et al.
// 2020 (dispatch and combine); DeepSeek-V2, arXiv 2405.04434 (latent attention).
#pragma once
#include <cstdint>

#include "penstock/plan/memory/layers_file.h"
#include "penstock/plan/shapes/decoder_shape.h"

namespace penstock::shapes {

// The layers of one rank, for one microbatch.
struct Cut {
  std::int64_t microbatch = 1;  // Samples.
  std::int64_t sequence = 1;    // Tokens of a sample.
  std::int64_t tensor = 1;      // Ranks that share weights.
  std::int64_t context = 1;     // Ranks that share a sample's tokens.
  std::int64_t experts = 1;     // Ranks that share experts.
  bool is_selective = false;    // Norms and activations are computed again.
  // How many times as many tokens as on the average go to the experts of this rank.
  double load = 1.0;
  memory::ExchangeWay context_way = memory::ExchangeWay::Gather;
  memory::ExchangeWay expert_way = memory::ExchangeWay::AllToAll;
  std::int64_t element_bytes = 2;      // Bytes of an element of weights and activations.
  std::int64_t sum_element_bytes = 4;  // Bytes of an element of summed gradients.
};

// The most that `load` can be: all tokens of all ranks go to this rank's experts.
double worst_load(const DecoderShape& shape, std::int64_t experts);

// Numbers among these by which weights can be cut.
bool can_share_weights(const DecoderShape& shape, std::int64_t tensor);

// An embedding, the blocks, and the head.
partition::ModelMeta meta_of(const DecoderShape& shape);
memory::MeasuredSize layers_of(const DecoderShape& shape, const Cut& cut);

}  // namespace penstock::shapes
