// A GPT: embedding, pre-norm transformer blocks with causal attention, output head.
//
// train/ makes its model from it.  Parameter names are GPT-2's (docs/weights.md), weights are
// stored [out, in].  Knows no text: tokens are numbers below the vocabulary, by default bytes.
// Shapes: tokens [microbatch, sequence] int64; between layers [microbatch, sequence, hidden];
// logits [microbatch, sequence, vocabulary]. Source: Radford et al., GPT-2 (2019); initialisation
// as there, residual projections scaled by 1 / sqrt(2 x layers).
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/nn/layer.h"

namespace penstock::nn {

inline constexpr std::int64_t kVocabulary = 256;  // Bytes.

struct GptOptions {
  std::int64_t layers = 4;
  std::int64_t hidden = 128;
  std::int64_t heads = 4;  // Must divide hidden.
  std::int64_t sequence_length = 128;
  std::int64_t vocabulary = kVocabulary;
  // The head's weight is the token embedding, as in GPT-2; otherwise it is one of its own.
  bool tie_embeddings = false;
  // Probability of a zero after the embedding, in the attention's weights and in what the blocks
  // add to the residual stream, while training.
  double dropout = 0.0;
};

// layers + 2 specs: "transformer", "transformer.h.0", ..., "head".
std::vector<LayerSpec> gpt_layers(const GptOptions& options);

// The same with each block's attention left out: context-free, for comparison.
// Blocks are x + Linear(ReLU(Linear(x))).
std::vector<LayerSpec> byte_mlp_layers(const GptOptions& options);

// Mean cross-entropy in nats per token of logits [b, t, vocabulary] against the next tokens [b, t];
// those that are -100 do not count.
at::Tensor next_byte_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace penstock::nn
