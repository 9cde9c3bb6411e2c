#include "penstock/plan/shapes/decoder_layers.h"

#include <gtest/gtest.h>

#include "tests/shapes/configs.h"

namespace penstock::shapes {
namespace {

using devices::KernelKind;
using memory::LayerMemory;
using memory::MeasuredSize;

std::int64_t elements_of(const LayerMemory& layer, bool of_experts) {
  const auto others = layer.parameters.size() - static_cast<std::size_t>(layer.expert_parameters);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < layer.parameters.size(); ++i) {
    if (of_experts == (i >= others)) sum += layer.parameters[i].elements;
  }
  return sum;
}

std::int64_t elements_of(const MeasuredSize& size) {
  std::int64_t sum = 0;
  for (const LayerMemory& each : size.memory.layers) {
    sum += elements_of(each, false) + elements_of(each, true);
  }
  return sum;
}

double products_of(const LayerMemory& layer) {
  double operations = 0.0;
  for (const auto& [kernel, count] : layer.forward_kernels) {
    if (kernel.kind != KernelKind::ShortProduct) continue;
    operations += static_cast<double>(kernel.amount) * static_cast<double>(count);
  }
  return operations;
}

// As their model cards say; DeepSeek-V3 has a layer of further tokens, which is not here.
TEST(DecoderLayers, HaveTheModelsParameters) {
  const auto whole = [](const std::string& text) {
    return static_cast<double>(elements_of(layers_of(read_shape(json_of(text)), {.sequence = 64})));
  };
  EXPECT_NEAR(whole(kMixtral), 46.7e9, 0.05e9);
  EXPECT_NEAR(whole(kQwen), 30.5e9, 0.05e9);
  EXPECT_NEAR(whole(kDeepSeek), 671e9, 0.5e9);
}

// What a rank has of experts, times the ranks that share them, is all; likewise of weights.
TEST(DecoderLayers, RanksHaveAllTogether) {
  for (const std::string& text : {kMixtral, kQwen, kDeepSeek}) {
    const DecoderShape shape = read_shape(json_of(text));
    const MeasuredSize whole = layers_of(shape, {.sequence = 64});
    const LayerMemory& block = whole.memory.layers[10];
    for (const std::int64_t experts : {2, 4, 8}) {
      const MeasuredSize part = layers_of(shape, {.sequence = 64, .experts = experts});
      EXPECT_EQ(experts * elements_of(part.memory.layers[10], true), elements_of(block, true));
      EXPECT_EQ(elements_of(part.memory.layers[10], false), elements_of(block, false));
    }
    // Where no ranks share experts, those that share weights do.
    const MeasuredSize cut = layers_of(shape, {.sequence = 64, .tensor = 4});
    EXPECT_EQ(4 * elements_of(cut.memory.layers[10], true), elements_of(block, true));
    EXPECT_EQ(4 * cut.memory.loss.kept, whole.memory.loss.kept);
  }
}

// A block of Mixtral, of 64 tokens: q, k, v 4096 x 6144, o 4096 x 4096, the router, and of each
// token two experts of 3 x 4096 x 14336.
TEST(DecoderLayers, MultiplyWhatATokenGoesTo) {
  const DecoderShape shape = read_shape(json_of(kMixtral));
  const double block =
      2.0 * 64 * (4096.0 * 6144 + 4096.0 * 4096 + 4096 * 8 + 2 * 3 * 4096.0 * 14336);
  const MeasuredSize one = layers_of(shape, {.sequence = 64});
  EXPECT_DOUBLE_EQ(products_of(one.memory.layers[1]), block);
  // However many ranks share experts, balanced: each works for all.
  const MeasuredSize shared = layers_of(shape, {.sequence = 64, .experts = 4});
  EXPECT_DOUBLE_EQ(products_of(shared.memory.layers[1]), block);
  // Four ranks that share tokens.
  const MeasuredSize quarter = layers_of(shape, {.sequence = 64, .context = 4});
  EXPECT_DOUBLE_EQ(4 * products_of(quarter.memory.layers[1]), block);
  const devices::Kernel attention{KernelKind::ShortAttention, 64 * 64 * 32 * 2 * 128};
  EXPECT_EQ(one.memory.layers[1].forward_kernels.count(attention), 1U);
  EXPECT_EQ(quarter.memory.layers[1].forward_kernels.count(
                {KernelKind::ShortAttention, attention.amount / 4}),
            1U);
}

// 64 tokens, each twice, of 4096 elements of two bytes: to their experts and back, in each pass.
TEST(DecoderLayers, TokensGoToTheirExpertsAndBack) {
  const DecoderShape shape = read_shape(json_of(kMixtral));
  const MeasuredSize size = layers_of(shape, {.sequence = 64, .experts = 4});
  const memory::LayerExchange expected{.group = memory::LayerGroup::Experts,
                                       .way = memory::ExchangeWay::AllToAll,
                                       .copies = 2,
                                       .forward_bytes = 64 * 2 * 4096 * 2,
                                       .forward_count = 2,
                                       .backward_bytes = 64 * 2 * 4096 * 2,
                                       .backward_count = 2};
  EXPECT_EQ(size.memory.layers[1].exchanges, std::vector<memory::LayerExchange>{expected});
  EXPECT_TRUE(layers_of(shape, {.sequence = 64}).memory.layers[1].exchanges.empty());
  // A token of two ranks that share weights is on one of them between layers.
  const MeasuredSize cut = layers_of(shape, {.sequence = 64, .tensor = 2, .experts = 4});
  EXPECT_EQ(cut.memory.layers[1].exchanges.front().forward_bytes, expected.forward_bytes / 2);
}

TEST(DecoderLayers, AFullRankHasMoreRows) {
  const DecoderShape shape = read_shape(json_of(kQwen));
  EXPECT_DOUBLE_EQ(worst_load(shape, 1), 1.0);    // It has all tokens anyway.
  EXPECT_DOUBLE_EQ(worst_load(shape, 8), 8.0);    // All tokens of eight ranks.
  EXPECT_DOUBLE_EQ(worst_load(shape, 64), 16.0);  // Two experts of a rank, of the eight of a token.
  const MeasuredSize even = layers_of(shape, {.sequence = 64, .experts = 8});
  const MeasuredSize full = layers_of(shape, {.sequence = 64, .experts = 8, .load = 8.0});
  // 64 tokens, eight times each, of 2048 elements and three times 768, of two bytes.
  const std::int64_t rows = 64 * 8, bytes = (2048 + 3 * 768) * 2;
  EXPECT_EQ(full.memory.layers[1].kept - even.memory.layers[1].kept, 7 * rows * bytes);
}

// Keys are made of 512 elements a token, and not kept by heads.
TEST(DecoderLayers, LatentAttentionIsMadeOfNarrowVectors) {
  const DecoderShape shape = read_shape(json_of(kDeepSeek));
  const LayerMemory dense = layers_of(shape, {.sequence = 64}).memory.layers[1];
  const double narrow = 7168.0 * (512 + 64 + 1536);
  const double up = 512.0 * 128 * (128 + 128) + 1536.0 * 128 * 192;
  EXPECT_DOUBLE_EQ(products_of(dense),
                   2 * 64 * (narrow + up + 128 * 128 * 7168.0 + 3 * 7168.0 * 18432));
}

}  // namespace
}  // namespace penstock::shapes
