#include "penstock/runtime/hugging_face/config_keys.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <memory>

#include "penstock/core/text.h"
#include "penstock/runtime/hugging_face/adapter_folder.h"
#include "penstock/runtime/hugging_face/families.h"
#include "penstock/runtime/hugging_face/generation_config.h"
#include "penstock/runtime/weights/safetensors.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

// Keys of other programs' files: each is read, or passed over for a reason, or refused by its name.
namespace penstock::hugging_face {
namespace {

using testing_support::message_of;
using testing_support::TemporaryFolder;

std::string model_of(const std::string& family) {
  if (family == "gpt2") {
    return R"("model_type": "gpt2", "vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2,
              "n_positions": 16)";
  }
  const bool has_windows = family == "gemma2" || family == "gemma3_text";
  return str(R"("vocab_size": 20, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
            "max_position_embeddings": 16, "head_dim": 4, "sliding_window": )",
             has_windows ? "4" : "null", R"(, "model_type": ")", family, "\"");
}

nn::DecoderOptions options_of(const std::string& fields) {
  return read_options(json::parse(std::make_shared<json::Source>(
      json::Source{.name = "config.json", .text = "{" + fields + "}"})));
}

std::string refusal_of(const std::string& family, const std::string& more) {
  return message_of([&] { options_of(model_of(family) + ", " + more); });
}

// What models of the hub have, and what transformers writes.
TEST(ConfigKeys, WhatChangesNothingIsPassedOver) {
  const char* const harmless[] = {
      R"("architectures": ["X"], "torch_dtype": "bfloat16", "transformers_version": "4.44.0")",
      R"("bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null, "use_cache": true)",
      R"("_name_or_path": "x", "_attn_implementation_autoset": true, "pretraining_tp": 1)",
      R"("id2label": {"0": "A"}, "label2id": {"A": 0}, "output_attentions": false)",
      R"("temperature": 0.6, "do_sample": true, "max_length": 2048, "is_decoder": true)",
      R"("quantization_config": null, "use_mrope": false, "pruned_heads": {}, "new_key": [])",
      R"("is_causal": true, "unsloth_version": "2026.1", "transformers.js_config": {"a": 1})"};
  for (const std::string& family : families()) {
    for (const char* const keys : harmless) EXPECT_EQ(refusal_of(family, keys), "no error") << keys;
  }
  EXPECT_EQ(refusal_of("gpt2", R"("n_ctx": 16, "attn_pdrop": 0.1, "summary_type": "x")"),
            "no error");
  EXPECT_EQ(refusal_of("llama", R"("attention_dropout": 0.1, "is_llama_config": true,
                                   "rope_interleaved": false)"),
            "no error");
}

// Keys that a family reads, which others refuse.
bool is_read(const std::string& family, const std::string& key) {
  if (family == "phi3" && key == "auto_map") return true;  // Of code that nobody runs.
  if (family == "granite") return key.ends_with("_multiplier") || key == "logits_scaling";
  if (key == "final_logit_softcapping") return family == "gemma2" || family == "gemma3_text";
  return family == "gemma2" && key == "attn_logit_softcapping";
}

TEST(ConfigKeys, WhatMayChangeResultsIsRefusedByName) {
  const std::pair<const char*, const char*> meaning[] = {
      {"attn_logit_softcapping", "50.0"},
      {"final_logit_softcapping", "30.0"},
      {"quantization_config", R"({"bits": 4})"},
      {"quantization", R"({"group_size": 64})"},
      {"auto_map", R"({"AutoModelForCausalLM": "modeling_x.X"})"},
      {"pruned_heads", R"({"0": [1]})"},
      {"is_causal", "false"},
      {"is_encoder_decoder", "true"},
      {"embedding_multiplier", "12.0"},
      {"logits_scaling", "8"},
      {"residual_multiplier", "0.22"},
      {"num_local_experts", "8"},
      {"per_layer_config", R"({"0": {"num_heads": 1}})"},
      {"dual_chunk_attention_config", R"({"chunk_size": 4})"},
      {"attention_sink", "4"},
      {"qk_layernorm", "true"},
      {"parallel_attn", "true"},
      {"alibi", "true"},
      {"clip_qkv", "8.0"},
      {"use_bidirectional_attention", "\"all\""}};
  for (const std::string& family : families()) {
    for (const auto& [key, value] : meaning) {
      if (is_read(family, key)) continue;
      const std::string refusal = refusal_of(family, str("\"", key, "\": ", value));
      EXPECT_TRUE(refusal.starts_with("config.json:")) << family << ": " << refusal;
      EXPECT_NE(refusal.find(str(": ", key, " = ")), std::string::npos)
          << family << ": " << refusal;
    }
  }
}

TEST(ConfigKeys, KeysOfAnotherFamilyAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama", R"("sliding_window": 4)"},
      {"llama", R"("layer_types": ["a", "b"])"},
      {"mistral", R"("attention_bias": true)"},
      {"mistral", R"("mlp_bias": true)"},
      {"mistral", R"("layer_types": ["full_attention", "sliding_attention"])"},
      {"qwen2", R"("attention_bias": true)"},
      {"gpt2", R"("rope_theta": 1e6)"},
      {"gpt2", R"("hidden_size": 16)"},
      {"llama", R"("n_embd": 16)"},
      {"llama", R"("partial_rotary_factor": 0.5)"}};
  for (auto [family, key] : cases) {
    std::string model = model_of(family);
    const std::size_t none = model.find("\"sliding_window\": null, ");
    if (none != std::string::npos) model.erase(none, 24);
    const std::string refusal = message_of([&] { options_of(model + ", " + key); });
    const std::string name = std::string(key).substr(1, std::string(key).find('"', 1) - 1);
    EXPECT_NE(refusal.find(name + " = "), std::string::npos) << family << ": " << refusal;
  }
}

TEST(ConfigKeys, OfRotaryScalingTheyAreTheSame) {
  const auto rope = [](const std::string& keys) {
    return refusal_of("llama", "\"rope_scaling\": {" + keys + "}");
  };
  EXPECT_EQ(rope(R"("rope_type": "linear", "type": "linear", "factor": 2)"), "no error");
  EXPECT_NE(rope(R"("rope_type": "linear", "factor": 2, "attention_factor": 0.5)")
                .find("attention_factor = 0.5"),
            std::string::npos);
  EXPECT_NE(rope(R"("rope_type": "default", "mrope_section": [1, 2])").find("mrope_section"),
            std::string::npos);
  EXPECT_NE(refusal_of("llama", R"("rope_scaling": {"type": "linear", "factor": 2},
                                   "rope_parameters": {"rope_theta": 10000.0})")
                .find("rope_parameters is there, too"),
            std::string::npos);
}

// What a config.json of the hub says that has these features, each by its key.
TEST(ConfigKeys, OfFurtherFamiliesEachChangesWhatTheModelComputes) {
  const auto of = [](const char* family, const std::string& more = "") {
    return options_of(model_of(family) + more);
  };
  const nn::DecoderOptions granite =
      of("granite", R"(, "embedding_multiplier": 12, "residual_multiplier": 0.22,
                         "attention_multiplier": 0.01, "logits_scaling": 16.0)");
  EXPECT_EQ(granite.embedding_scale, 12.0);
  EXPECT_EQ(granite.residual_scale, 0.22);
  EXPECT_EQ(granite.attention_scale, 0.01);
  EXPECT_EQ(granite.logit_divisor, 16.0);
  const nn::DecoderOptions phi = of("phi3", R"(, "partial_rotary_factor": 0.5, "embd_pdrop": 0.1,
      "original_max_position_embeddings": 4,
      "rope_scaling": {"type": "su", "short_factor": [1.5], "long_factor": [3]})");
  EXPECT_TRUE(phi.fuses_projections);
  EXPECT_EQ(phi.rotary->share, 0.5);
  EXPECT_EQ(phi.rotary->scaling, nn::RotaryScaling::LongRope);
  EXPECT_EQ(phi.rotary->short_divisors, std::vector<double>{1.5});
  EXPECT_EQ(phi.rotary->long_divisors, std::vector<double>{3.0});
  EXPECT_EQ(phi.rotary->original_positions, 4);
  EXPECT_NEAR(phi.rotary->magnitude, std::sqrt(2.0), 1e-12);  // Four times as many.
  const nn::DecoderOptions smollm =
      of("smollm3", R"(, "no_rope_layers": [0, 1], "max_window_layers": 28)");
  EXPECT_EQ(smollm.without_rotary, (std::vector<bool>{true, false}));
  const nn::DecoderOptions gemma =
      of("gemma2", R"(, "layer_types": ["full_attention", "full_attention"],
                        "query_pre_attn_scalar": 16, "attn_logit_softcapping": null,
                        "final_logit_softcapping": 20.0, "hidden_act": "gelu_pytorch_tanh",
                        "cache_implementation": "hybrid")");
  EXPECT_EQ(gemma.attention_scale, 0.25);
  EXPECT_EQ(gemma.score_cap, std::nullopt);
  EXPECT_EQ(gemma.logit_cap, 20.0);
  EXPECT_TRUE(gemma.norm_offset == 1.0 && gemma.norm_places == nn::NormPlaces::Around);
  const nn::DecoderOptions two =
      options_of(model_of("gemma3_text") +
                 R"(, "sliding_window_pattern": 2, "rope_theta": 1e5, "rope_local_base_freq": 1e3,
                    "rope_scaling": {"rope_type": "linear", "factor": 8})");
  EXPECT_EQ(two.windows, (std::vector<std::optional<std::int64_t>>{4, std::nullopt}));
  EXPECT_EQ(two.rotary->theta, 1e5);
  EXPECT_EQ(two.rotary->factor, 8.0);
  EXPECT_EQ(two.rotary_of_windows->theta, 1e3);
  EXPECT_EQ(two.rotary_of_windows->factor, 1.0);
}

// Keys of released folders that change nothing, and the same where they would.
TEST(ConfigKeys, ThatStandInReleasedFoldersArePassedOver) {
  const char* const of_phi4 =
      R"("auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
                      "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
         "full_attn_mod": 1, "interpolate_factor": 1, "embd_pdrop": 0.0, "resid_pdrop": 0.0)";
  EXPECT_EQ(refusal_of("phi3", of_phi4), "no error");
  EXPECT_NE(refusal_of("phi3", R"("full_attn_mod": 2)").find("full_attn_mod = 2"),
            std::string::npos);
  const std::string pattern = R"("_sliding_window_pattern": 2)";
  EXPECT_NE(refusal_of("gemma3_text", pattern).find("may change results"), std::string::npos);
  EXPECT_EQ(refusal_of("gemma3_text",
                       pattern + R"(, "layer_types": ["sliding_attention", "full_attention"])"),
            "no error");
}

TEST(ConfigKeys, OfYarnPlacesAreRoundedUnlessTruncateIsFalseOrNull) {
  const auto rounds = [](const char* truncate) {
    return options_of(model_of("llama") + R"(, "rope_scaling": {"rope_type": "yarn", "factor": 2)" +
                      truncate + "}")
        .rotary->rounds_places;
  };
  EXPECT_TRUE(rounds(""));
  EXPECT_TRUE(rounds(R"(, "truncate": true)"));
  EXPECT_FALSE(rounds(R"(, "truncate": false)"));
  EXPECT_FALSE(rounds(R"(, "truncate": null)"));
}

TEST(ConfigKeys, WhatAFamilyHasAndPenstockHasNotIsRefusedByItsKey) {
  const std::array<const char*, 3> cases[] = {
      {"gemma2", R"("use_bidirectional_attention": true)", "penstock has false only"},
      {"gemma3_text", R"("attn_logit_softcapping": 50.0)", "may change results"},
      {"gemma2", R"("hidden_activation": "gelu")", "gelu_pytorch_tanh"},
      {"gemma2", R"("layer_types": ["full_attention", "chunked_attention"])", "layer 1 is"},
      {"gemma3_text", R"("rope_parameters": {"rope_type": "default"})", "may change results"},
      {"phi3", R"("partial_rotary_factor": 0.25)", "turns 1 of 4 elements of a head"},
      {"phi3", R"("attention_bias": true)", "penstock has false only"},
      {"llama", R"("partial_rotary_factor": 0.5)", "turns whole heads"},
      {"smollm3", R"("no_rope_layers": [1])", "expected one for each of 2 layers"},
      {"smollm3", R"("use_sliding_window": true)", "needs sliding_window"},
      {"granite", R"("residual_multiplier": 0)", "expected a number above 0"},
      {"olmo2", R"("mlp_bias": true)", "may change results"}};
  for (const auto& [family, key, why] : cases) {
    const std::string refusal = refusal_of(family, key);
    const std::string name = std::string(key).substr(1, std::string(key).find('"', 1) - 1);
    const bool is_nested = name == "rope_parameters";
    EXPECT_NE(refusal.find((is_nested ? "rope_type" : name) + " = "), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(why), std::string::npos) << family << ": " << refusal;
  }
}

// What a family's class has where a key is absent, and what it makes of null.
TEST(ConfigKeys, AbsentKeysHaveTheFamilysValues) {
  const std::string sizes = R"("vocab_size": 20, "hidden_size": 64, "intermediate_size": 12,
    "num_hidden_layers": 30, "num_attention_heads": 32, "model_type": )";
  const nn::DecoderOptions mistral = options_of(sizes + "\"mistral\"");
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.windows, (std::vector<std::optional<std::int64_t>>(30, 4096)));
  const nn::DecoderOptions none =
      options_of(sizes + R"("mistral", "num_key_value_heads": null, "sliding_window": null)");
  EXPECT_EQ(none.kv_heads, 32);
  EXPECT_TRUE(none.windows.empty());
  EXPECT_EQ(options_of(sizes + "\"llama\"").kv_heads, 32);
  EXPECT_EQ(options_of(sizes + "\"qwen2\"").kv_heads, 32);
  EXPECT_EQ(options_of(sizes + "\"qwen3\"").head_dim, 128);
  EXPECT_EQ(options_of(sizes + "\"phi3\"").norm_epsilon, 1e-5);
  EXPECT_EQ(options_of(sizes + "\"olmo2\"").norm_epsilon, 1e-5);
  EXPECT_EQ(options_of(sizes + "\"granite\"").attention_scale, 1.0);
  const nn::DecoderOptions smollm = options_of(sizes + "\"smollm3\"");
  EXPECT_EQ(smollm.kv_heads, 4);
  EXPECT_EQ(smollm.rotary->theta, 2e6);
  EXPECT_TRUE(smollm.tie_embeddings && smollm.without_rotary[3] && !smollm.without_rotary[4]);
  const nn::DecoderOptions gemma = options_of(sizes + "\"gemma2\"");
  EXPECT_TRUE(gemma.tie_embeddings && gemma.head_dim == 256 && gemma.kv_heads == 4);
  EXPECT_TRUE(gemma.score_cap == 50.0 && gemma.logit_cap == 30.0 && gemma.embedding_scale == 8.0);
  EXPECT_TRUE(gemma.windows[0] == 4096 && !gemma.windows[1] && gemma.attention_scale == 1.0 / 16);
  const nn::DecoderOptions gemma3 = options_of(sizes + "\"gemma3_text\"");
  EXPECT_TRUE(gemma3.windows[4] == 4096 && !gemma3.windows[5] && !gemma3.score_cap);
  EXPECT_TRUE(gemma3.rotary->theta == 1e6 && gemma3.rotary_of_windows->theta == 1e4);
  const nn::DecoderOptions qwen = options_of(sizes + R"("qwen2", "use_sliding_window": true)");
  EXPECT_EQ(qwen.windows[27], std::nullopt);
  EXPECT_EQ(qwen.windows[28], 4096);
  EXPECT_NE(message_of([&] {
              options_of(R"("vocab_size": 20, "hidden_size": 8, "intermediate_size": 12,
                "num_hidden_layers": 2, "num_attention_heads": 2, "model_type": "mistral")");
            }).find("num_key_value_heads: is absent, which means 8: must divide"),
            std::string::npos);
}

class Generation : public testing::Test {
 protected:
  GenerationConfig read(const char* name, const std::string& text) {
    std::ofstream(folder_.file(name)) << text;
    return read_generation_config(folder_.path());
  }
  using Tokens = std::vector<std::int64_t>;
  TemporaryFolder folder_;
};

TEST_F(Generation, EndsAreThoseOfGenerationWhereTheyAreSaid) {
  EXPECT_EQ(read_generation_config(folder_.path()).ends, Tokens());
  EXPECT_EQ(read("config.json", R"({"eos_token_id": 7})").ends, Tokens({7}));
  EXPECT_EQ(read("generation_config.json", R"({"eos_token_id": null})").ends, Tokens({7}));
  EXPECT_EQ(read("generation_config.json", R"({"eos_token_id": [3, 9]})").ends, Tokens({3, 9}));
  EXPECT_NE(message_of([&] {
              read("generation_config.json", R"({"eos_token_id": [3, true]})");
            }).find("json:1:22: eos_token_id"),
            std::string::npos);
}

TEST_F(Generation, WhatWouldChooseOtherTokensIsTold) {
  EXPECT_TRUE(read("generation_config.json", R"({"_from_model_config": true, "bos_token_id": 0,
    "pad_token_id": 0, "max_length": 20, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    "do_sample": false, "repetition_penalty": 1.0, "transformers_version": "5.23.0"})")
                  .passed_over.empty());
  EXPECT_EQ(join(read("generation_config.json", R"({"do_sample": true, "temperature": 0.6,
    "top_p": 0.9, "repetition_penalty": 1.1, "suppress_tokens": [4], "brand_new": 3})")
                     .passed_over,
                 "; "),
            "do_sample = true; temperature = 0.6; top_p = 0.9; repetition_penalty = 1.1; "
            "suppress_tokens = a list; brand_new = 3");
}

// A model with adapters of q_proj that PEFT has saved.
class AdapterKeys : public testing::Test {
 protected:
  AdapterKeys() {
    const std::string fields = model_of("llama");
    std::ofstream(base_.file("config.json")) << "{" << fields << "}";
    weights::NamedTensors tensors, adapters;
    for (const auto& [name, shape] : nn::decoder_parameters(options_of(fields))) {
      tensors.emplace_back(name, at::ones(shape));
    }
    weights::write_safetensors(base_.file("model.safetensors"), tensors);
    for (const int layer : {0, 1}) {
      const std::string linear = str("base_model.model.model.layers.", layer, ".self_attn.q_proj.");
      adapters.emplace_back(linear + "lora_A.weight", at::ones({2, 8}));
      adapters.emplace_back(linear + "lora_B.weight", at::ones({8, 2}));
    }
    weights::write_safetensors(folder_.file("adapter_model.safetensors"), adapters);
  }

  std::string refusal(const std::string& more) const {
    std::ofstream(folder_.file("adapter_config.json"))
        << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4)" << more << "}";
    const nn::AdapterOptions adapter{.rank = 2, .alpha = 4.0, .targets = "q_proj"};
    return message_of([&] { read_adapters(folder_.path(), ModelFolder(base_.path()), adapter); });
  }

  TemporaryFolder base_, folder_;
};

TEST_F(AdapterKeys, WhatPeftWritesOfPlainAdaptersIsTaken) {
  EXPECT_EQ(refusal(R"(, "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
    "auto_mapping": null, "base_model_name_or_path": "base", "bias": "none", "corda_config": null,
    "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
    "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
    "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
    "loftq_config": {}, "lora_bias": false, "lora_dropout": 0.05,
    "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
    "peft_version": "0.21.2", "qalora_group_size": 16, "rank_pattern": {}, "revision": null,
    "target_modules": ["q_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
    "trainable_token_indices": null, "use_dora": false, "use_qalora": false,
    "use_rslora": false)"),
            "no error");
}

TEST_F(AdapterKeys, WhatChangesWhatAdaptersMeanIsRefusedByName) {
  const std::pair<const char*, const char*> meaning[] = {{"alpha_pattern", R"({"q_proj": 32})"},
                                                         {"rank_pattern", R"({"q_proj": 4})"},
                                                         {"init_lora_weights", "\"pissa\""},
                                                         {"init_lora_weights", "\"pissa_niter_4\""},
                                                         {"init_lora_weights", "\"olora\""},
                                                         {"init_lora_weights", "\"loftq\""},
                                                         {"init_lora_weights", "\"corda\""},
                                                         {"alora_invocation_tokens", "[3, 4]"},
                                                         {"use_dora", "true"},
                                                         {"use_rslora", "true"},
                                                         {"use_qalora", "true"},
                                                         {"lora_bias", "true"},
                                                         {"bias", "\"all\""},
                                                         {"bias", "\"lora_only\""},
                                                         {"modules_to_save", R"(["lm_head"])"},
                                                         {"layers_to_transform", "[0]"},
                                                         {"layers_to_transform", "0"},
                                                         {"layers_pattern", "\"layers\""},
                                                         {"exclude_modules", R"(["v_proj"])"},
                                                         {"trainable_token_indices", "[1]"},
                                                         {"target_parameters", R"(["x"])"},
                                                         {"layer_replication", "[[0, 1], [0, 1]]"},
                                                         {"megatron_config", R"({"a": 1})"},
                                                         {"megatron_core", "\"other\""},
                                                         {"loftq_config", R"({"loftq_bits": 4})"},
                                                         {"eva_config", R"({"rho": 2.0})"},
                                                         {"corda_config", R"({"verbose": false})"},
                                                         {"task_type", "\"SEQ_CLS\""},
                                                         {"a_key_of_next_year", "0.5"}};
  for (const auto& [key, value] : meaning) {
    const std::string said = refusal(str(", \"", key, "\": ", value));
    EXPECT_NE(said.find(str(key, " = ")), std::string::npos) << value << ": " << said;
    EXPECT_NE(said.find("adapter_config.json:1:"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace penstock::hugging_face
