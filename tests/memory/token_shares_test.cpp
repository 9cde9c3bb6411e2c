#include "penstock/plan/memory/token_shares.h"

#include <gtest/gtest.h>

#include "penstock/core/text.h"
#include "penstock/plan/memory/layers_file.h"

namespace penstock::memory {
namespace {

using devices::KernelKind;

LayerMemory block() {
  return {.forward_peak = 100,
          .plain_forward_peak = 90,
          .backward_peak = {.first = 80, .later = 70},
          .input_peak = 60,
          .forward_kernels = {{{KernelKind::ShortProduct, 1000}, 1},
                              {{KernelKind::ShortAttention, 50}, 1}},
          .backward_kernels = {{{KernelKind::ShortAttentionBackward, 125}, 1}},
          .input_kernels = {{{KernelKind::ShortAttentionBackward, 125}, 1}}};
}

std::string text(const LayerMemory& layer) {
  return to_json(LayersFile{.sizes = {{.memory = {.layers = {layer}}}}});
}

TEST(TokenShares, OneRankChangesNothing) {
  LayerMemory layer = block();
  share_tokens(1, 40, ExchangeWay::Gather, layer);
  EXPECT_EQ(text(layer), text(block()));
}

TEST(TokenShares, LayersWithoutAttentionChangeNothing) {
  LayerMemory layer{.forward_kernels = {{{KernelKind::Product, 1000}, 1}}};
  const std::string before = text(layer);
  share_tokens(4, 40, ExchangeWay::Gather, layer);
  EXPECT_EQ(text(layer), before);
}

// Of 8 tokens on 4 ranks, each has 2.  Alone they have 2 * 2 / 2 pairs, and of 8 * 8 / 2 a fourth.
TEST(TokenShares, RanksHaveEqualPartsOfACausalMask) {
  LayerMemory layer = block();
  share_tokens(4, 40, ExchangeWay::Gather, layer);
  EXPECT_EQ(layer.forward_kernels, (devices::Kernels{{{KernelKind::ShortProduct, 1000}, 1},
                                                     {{KernelKind::ShortAttention, 200}, 1}}));
  EXPECT_EQ(layer.backward_kernels,
            (devices::Kernels{{{KernelKind::ShortAttentionBackward, 500}, 1}}));
}

TEST(TokenShares, WhatIsGatheredIsThereWhileAPassRuns) {
  LayerMemory layer = block();
  share_tokens(4, 40, ExchangeWay::Gather, layer);
  const LayerExchange expected{.group = LayerGroup::Context,
                               .way = ExchangeWay::Gather,
                               .forward_bytes = 40,
                               .forward_count = 1,
                               .backward_bytes = 40,
                               .backward_count = 2};
  EXPECT_EQ(layer.exchanges, std::vector<LayerExchange>{expected});
  EXPECT_EQ(layer.forward_peak, 100 + 3 * 40);        // Three other ranks' parts.
  EXPECT_EQ(layer.backward_peak.later, 70 + 7 * 40);  // These, and gradients of all four.
}

TEST(TokenShares, ARingHasOnePartUnderWay) {
  LayerMemory layer = block();
  share_tokens(4, 40, ExchangeWay::Ring, layer);
  EXPECT_EQ(layer.exchanges.front().backward_bytes, 80);  // Gradients go along.
  EXPECT_EQ(layer.forward_peak, 140);
  EXPECT_EQ(layer.input_peak, 60 + 3 * 40);
}

}  // namespace
}  // namespace penstock::memory
