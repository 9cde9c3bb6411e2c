#include "penstock/plan/shapes/decoder_shape.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::shapes {
namespace {

using json::Value;

const std::vector<std::string> kFamilies = {"deepseek_v2", "deepseek_v3", "mixtral",
                                            "olmoe",       "qwen2_moe",   "qwen3_moe"};

const json::Member* member_of(const Value& config, std::string_view key) {
  const auto* const object = std::get_if<Value::Object>(&config.data);
  const json::Member* const member = object == nullptr ? nullptr : json::find(*object, key);
  return member == nullptr || member->value.is_null() ? nullptr : member;
}

std::string family_of(const Value& config) {
  const json::Member* const member = member_of(config, "model_type");
  const auto* const name = member ? std::get_if<std::string>(&member->value.data) : nullptr;
  return name == nullptr ? "" : *name;
}

// The config's values, with all that is wrong.
class Fields {
 public:
  explicit Fields(const Value& config) : config_(config) {}

  std::int64_t count(std::string_view key, std::optional<std::int64_t> fallback = {},
                     std::int64_t least = 1) {
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    const json::Member* const member = member_of(config_, key);
    if (member == nullptr) {
      if (!fallback) problems_.push_back(str(key, " is missing"));
      return fallback.value_or(1);
    }
    const auto* const number = std::get_if<std::int64_t>(&member->value.data);
    if (number != nullptr && *number >= least && *number <= kMost) return *number;
    problems_.push_back(str(json::to_string(json::origin_of(member->value)), ": ", key,
                            ": expected a whole number from ", least, " to ", kMost, ", found ",
                            json::found(member->value)));
    return fallback.value_or(1);
  }

  bool flag(std::string_view key, bool fallback) {
    const json::Member* const member = member_of(config_, key);
    if (member == nullptr) return fallback;
    if (const auto* const value = std::get_if<bool>(&member->value.data)) return *value;
    problems_.push_back(str(json::to_string(json::origin_of(member->value)), ": ", key,
                            ": expected true or false, found ", json::found(member->value)));
    return fallback;
  }

  // Numbers of layers.
  std::vector<std::int64_t> list(std::string_view key) {
    std::vector<std::int64_t> numbers;
    const json::Member* const member = member_of(config_, key);
    if (member == nullptr) return numbers;
    const auto* const list = std::get_if<Value::Array>(&member->value.data);
    if (list == nullptr) {
      problems_.push_back(str(json::to_string(json::origin_of(member->value)), ": ", key,
                              ": expected a list, found ", json::found(member->value)));
      return numbers;
    }
    for (const Value& each : *list) {
      if (const auto* const number = std::get_if<std::int64_t>(&each.data)) {
        numbers.push_back(*number);
      }
    }
    return numbers;
  }

  void require(bool holds, const std::string& problem) {
    if (!holds) problems_.push_back(problem);
  }

  void finish(const std::string& family) const {
    if (problems_.empty()) return;
    const std::string name = config_.source == nullptr ? "config.json" : config_.source->name;
    throw ConfigError(str(name, ": no ", family, " has these sizes"), problems_);
  }

 private:
  const Value& config_;
  std::vector<std::string> problems_;
};

void read_deepseek(Fields& fields, DecoderShape& shape) {
  shape.latent = {.query = fields.count("q_lora_rank", 0, 0),
                  .key_value = fields.count("kv_lora_rank"),
                  .rotary = fields.count("qk_rope_head_dim"),
                  .plain = fields.count("qk_nope_head_dim"),
                  .value = fields.count("v_head_dim")};
  shape.head = shape.latent.rotary + shape.latent.plain;
  shape.kv_heads = shape.heads;
  shape.experts = {.count = fields.count("n_routed_experts"),
                   .of_token = fields.count("num_experts_per_tok"),
                   .width = fields.count("moe_intermediate_size")};
  shape.experts.shared_width = fields.count("n_shared_experts", 0, 0) * shape.experts.width;
  const std::int64_t first = fields.count("first_k_dense_replace", 0, 0);
  const std::int64_t every = fields.count("moe_layer_freq", 1);
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    shape.has_experts.push_back(i >= first && i % every == 0);
  }
}

void read_qwen(Fields& fields, DecoderShape& shape) {
  shape.experts = {.count = fields.count("num_experts"),
                   .of_token = fields.count("num_experts_per_tok"),
                   .width = fields.count("moe_intermediate_size")};
  if (shape.family == "qwen2_moe") {
    shape.experts.shared_width = fields.count("shared_expert_intermediate_size", 0, 0);
  }
  shape.has_head_norms = shape.family == "qwen3_moe";
  const std::int64_t every = fields.count("decoder_sparse_step", 1);
  const std::vector<std::int64_t> without = fields.list("mlp_only_layers");
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    shape.has_experts.push_back((i + 1) % every == 0 && std::ranges::count(without, i) == 0);
  }
}

}  // namespace

std::vector<std::string> families_with_experts() { return kFamilies; }

bool is_with_experts(const Value& config) {
  return std::ranges::find(kFamilies, family_of(config)) != kFamilies.end();
}

DecoderShape read_shape(const Value& config) {
  Fields fields(config);
  DecoderShape shape{.family = family_of(config),
                     .layers = fields.count("num_hidden_layers"),
                     .hidden = fields.count("hidden_size"),
                     .heads = fields.count("num_attention_heads")};
  constexpr std::int64_t kLayersMax = 1 << 16;
  fields.require(shape.layers <= kLayersMax, str("num_hidden_layers: at most ", kLayersMax));
  shape.layers = std::min(shape.layers, kLayersMax);
  shape.kv_heads = fields.count("num_key_value_heads", shape.heads);
  shape.head = fields.count("head_dim", std::max<std::int64_t>(1, shape.hidden / shape.heads));
  shape.vocabulary = fields.count("vocab_size");
  shape.has_ties = fields.flag("tie_word_embeddings", false);
  shape.width = fields.count("intermediate_size");
  if (shape.family.starts_with("deepseek")) {
    read_deepseek(fields, shape);
  } else if (shape.family.starts_with("qwen")) {
    read_qwen(fields, shape);
  } else {
    const bool is_mixtral = shape.family == "mixtral";
    shape.experts = {.count = fields.count(is_mixtral ? "num_local_experts" : "num_experts"),
                     .of_token = fields.count("num_experts_per_tok"),
                     .width = shape.width};
    shape.has_head_norms = !is_mixtral;
    shape.has_experts.assign(static_cast<std::size_t>(shape.layers), true);
  }
  fields.require(shape.heads % shape.kv_heads == 0,
                 str("num_attention_heads ", shape.heads, " is no multiple of num_key_value_heads ",
                     shape.kv_heads));
  fields.require(
      shape.experts.of_token <= shape.experts.count,
      str("num_experts_per_tok ", shape.experts.of_token, " of ", shape.experts.count, " experts"));
  fields.finish(shape.family);
  return shape;
}

}  // namespace penstock::shapes
