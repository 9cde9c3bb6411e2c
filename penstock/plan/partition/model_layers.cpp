#include "penstock/plan/partition/model_layers.h"

#include <algorithm>
#include <optional>
#include <string>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/read_file.h"

namespace penstock::partition {
namespace {

constexpr std::int64_t kBlocksMax = 1 << 20;  // More are refused elsewhere.

ModelMeta around(const char* first, const char* block, std::int64_t blocks,
                 const std::vector<const char*>& last) {
  ModelMeta layers = {{.type = first}};
  layers.resize(static_cast<std::size_t>(blocks) + 1, {.type = block});
  for (const char* const type : last) layers.push_back({.type = type});
  return layers;
}

// The number of blocks, by the names that the families of Hugging Face have for it.
std::optional<std::int64_t> blocks_in(const std::string& folder) {
  try {
    const std::string path = folder + "/config.json";
    const auto source = std::make_shared<const json::Source>(json::Source{
        .name = path, .text = read_file("the configuration of a model", path, json::kBytesMax)});
    const json::Value value = json::parse(source);
    const auto* const object = std::get_if<json::Value::Object>(&value.data);
    for (const char* const key : {"num_hidden_layers", "n_layer"}) {
      const json::Member* const member = object == nullptr ? nullptr : json::find(*object, key);
      if (member == nullptr) continue;
      const auto* const count = std::get_if<std::int64_t>(&member->value.data);
      if (count != nullptr && *count > 0 && *count <= kBlocksMax) return *count;
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

ModelMeta known_layers(const config::ModelConfig& model) {
  switch (model.type) {
    case config::ModelType::Gpt:
      return around("Embedding", "Block", std::min(model.layers, kBlocksMax), {"Head"});
    case config::ModelType::Mlp:
      return around("Embedding", "MlpBlock", std::min(model.layers, kBlocksMax), {"Head"});
    case config::ModelType::HuggingFace: {
      const auto blocks = blocks_in(model.path);
      if (!blocks) return {};
      return around("DecoderEmbedding", "DecoderBlock", *blocks, {"DecoderNorm", "DecoderHead"});
    }
  }
  return {};
}

}  // namespace penstock::partition
