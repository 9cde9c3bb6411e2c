// Layers that were measured for one Hugging Face folder were taken for another one's, and for an
// MLP's: the file named neither folder nor vocabulary.  A decoder's embedding was priced as a
// product with the whole table, and its attention as nothing.
#include <gtest/gtest.h>

#include <string>

#include "penstock/plan/choose/layer_times.h"
#include "penstock/plan/memory/layers_file.h"

namespace penstock {
namespace {

config::Config folder(const std::string& path) {
  config::Config config;
  config.model.type = config::ModelType::HuggingFace;
  config.model.path = path;
  return config;
}

TEST(PlanOfAnotherModel, LayersAreThoseOfOneFolderAndVocabulary) {
  config::Config mlp;
  mlp.model.type = config::ModelType::Mlp;
  EXPECT_NE(memory::made_for(folder("a")), memory::made_for(folder("b")));
  EXPECT_NE(memory::made_for(folder("a")), memory::made_for(mlp));
  const std::string of_bytes = memory::made_for(mlp);
  mlp.model.vocabulary = 1000;
  EXPECT_NE(memory::made_for(mlp), of_bytes);
}

TEST(PlanOfAnotherModel, ADecodersLayersArePricedByTheirTypes) {
  constexpr std::int64_t kVocabulary = 1000, kHidden = 8, kTokens = 16, kBlock = 500;
  const auto layer = [](std::int64_t elements) {
    return memory::LayerMemory{
        .parameters = {{.name = "w", .type = "Float", .elements = elements}}};
  };
  const memory::ModelMemory memory{.layers = {layer(kVocabulary * kHidden), layer(kBlock),
                                              layer(kHidden), layer(kVocabulary * kHidden)}};
  const partition::ModelMeta meta = {
      {.name = "model.embed_tokens", .type = "DecoderEmbedding", .parameters = 0},
      {.name = "model.layers.0", .type = "DecoderBlock", .parameters = 0},
      {.name = "model.norm", .type = "DecoderNorm", .parameters = 0},
      {.name = "lm_head", .type = "DecoderHead", .parameters = 0}};
  config::ModelConfig model = folder("a").model;
  model.sequence_length = kTokens;
  const auto operations =
      choose::forward_operations(model, meta, {.microbatch = 2, .memory = memory});
  EXPECT_EQ(operations[0], 2 * 2.0 * kTokens * kHidden);
  EXPECT_EQ(operations[1], 2 * (2.0 * kTokens * kBlock + 2.0 * kTokens * kTokens * kHidden));
  EXPECT_EQ(operations[2], 2 * 2.0 * kTokens * kHidden);
  EXPECT_EQ(operations[3], 2 * 2.0 * kTokens * kVocabulary * kHidden);
}

}  // namespace
}  // namespace penstock
