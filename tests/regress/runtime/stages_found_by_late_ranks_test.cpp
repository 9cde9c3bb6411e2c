// A cut of the model that no rank can make was found by a rank, after all had started.  The
// launcher knows the layers' types before they are made; here they are held to those that are made.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "penstock/nn/layer.h"
#include "penstock/plan/partition/model_layers.h"
#include "penstock/runtime/run/from_config.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

std::vector<std::string> types_of(const partition::ModelMeta& layers) {
  std::vector<std::string> types;
  for (const partition::LayerMeta& layer : layers) types.push_back(layer.type);
  return types;
}

void expect_known(const config::Config& config) {
  const auto made = types_of(nn::meta_of(run::model_of(config).layers));
  EXPECT_EQ(types_of(partition::known_layers(config.model)), made);
}

TEST(KnownLayers, AreThoseThatAreMade) {
  for (const config::ModelType type : {config::ModelType::Gpt, config::ModelType::Mlp}) {
    config::Config config;
    config.model.type = type;
    for (config.model.layers = 1; config.model.layers <= 3; ++config.model.layers) {
      expect_known(config);
    }
  }
}

TEST(KnownLayers, AreThoseOfAFolder) {
  const std::string llama =
      R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 8,
          "num_attention_heads": 1, "num_hidden_layers": 3, "vocab_size": 16,
          "max_position_embeddings": 16, "rms_norm_eps": 1e-5})";
  const std::string gpt2 =
      R"({"model_type": "gpt2", "n_embd": 8, "n_head": 1, "n_layer": 2, "n_positions": 16,
          "vocab_size": 16})";
  for (const std::string& text : {llama, gpt2}) {
    const testing_support::TemporaryFolder folder;
    std::ofstream(folder.file("config.json")) << text;
    config::Config config;
    config.model.type = config::ModelType::HuggingFace;
    config.model.path = folder.path();
    config.model.weights = config::FirstWeights::Random;
    config.model.sequence_length = 8;
    expect_known(config);
  }
}

}  // namespace
}  // namespace penstock
