// Sizes of public models with experts, as their config.json say them.
//
// Tests of shapes read them.  Knows no layers.
#pragma once
#include <memory>
#include <string>

#include "penstock/core/json/tree.h"

namespace penstock::shapes {

inline const std::string kMixtral =
    R"({"model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096,
"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2})";
inline const std::string kQwen =
    R"({"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
"moe_intermediate_size": 768, "vocab_size": 151936, "num_experts": 128,
"num_experts_per_tok": 8})";
inline const std::string kDeepSeek =
    R"({"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
"num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
"moe_intermediate_size": 2048, "vocab_size": 129280, "n_routed_experts": 256,
"num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536,
"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128})";

inline json::Value json_of(const std::string& text) {
  return json::parse(
      std::make_shared<json::Source>(json::Source{.name = "config.json", .text = text}));
}

}  // namespace penstock::shapes
