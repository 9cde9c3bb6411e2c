// Cross-entropy over a vocabulary, without a copy of all logits.
//
// The loss of decoder.h's models.  Rows are taken some at a time, in float whatever the logits are.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "penstock/core/ignored_target.h"
#include "penstock/runtime/nn/loss.h"

namespace penstock::nn {

// Mean cross-entropy in nats of logits [microbatch, sequence, vocabulary] against next tokens
// [microbatch, sequence], over the targets that are not kIgnoredTarget; NaN where none counts, with
// gradients of 0.  Where nothing else holds the logits, their gradient takes their memory.
// Throws: Error for a target beyond the vocabulary, and for shapes that do not fit.  On a device, a
// Trainer throws the first at the end of the run, so that no microbatch waits for it.
at::Tensor mean_token_loss(const at::Tensor& logits, const at::Tensor& targets);

// mean_token_loss() as a Trainer's loss, which ranks that share the model's head compute together:
// each has the logits of its part of the vocabulary, and none ever has all.  `vocabulary` is that
// of the whole model.  Takes logits of any type.
// Numerics: with shared layers, sums over the vocabulary are sums of the ranks' sums, in the order
// of ranks.
// Source: Shoeybi et al., Megatron-LM (2019).
Loss token_loss(std::int64_t vocabulary);
// Its pieces, for a loss that computes the same of all logits.
LossPieces pieces_of_token_loss(std::int64_t vocabulary);

}  // namespace penstock::nn
