#include "penstock/runtime/hugging_face/config_keys.h"

#include <array>
#include <vector>

namespace penstock::hugging_face {
namespace {

using json::PassedOver;

constexpr std::string_view kNames = "says where the model is from";
constexpr std::string_view kLabels = "is of classifiers";
constexpr std::string_view kGeneration = "is of generated texts; penstock generate tells it";
constexpr std::string_view kTokens = "names a token; texts and their tokens say the same";
constexpr std::string_view kOutputs = "chooses what transformers returns";
constexpr std::string_view kKernels = "chooses how transformers computes the same";
constexpr std::string_view kTypes = "the weights say their types";
constexpr std::string_view kDropout = "no dropout is applied";
constexpr std::string_view kMarks = "is a mark of a tool that made the folder";

// Keys of every family.
constexpr auto kCommonKeys = std::to_array<PassedOver>({
    {"_name_or_path", kNames},
    {"name_or_path", kNames},
    {"_commit_hash", kNames},
    {"architectures", "the weights say what the model has"},
    {"transformers_version", kNames},
    {"transformers.js_config", kMarks},
    {"unsloth_*", kMarks},
    {"auto_map", "the model is code in the folder, which penstock does not run", "{}"},
    {"torch_dtype", kTypes},
    {"dtype", kTypes},
    {"initializer_range", "is of random weights"},
    {"tokenizer_class", "the tokenizer's own files say it"},
    {"vocab_file", "the tokenizer's own files say it"},
    {"bos_token_id", kTokens},
    {"eos_token_id", kTokens},
    {"pad_token_id", kTokens},
    {"sep_token_id", kTokens},
    {"cls_token_id", kTokens},
    {"unk_token_id", kTokens},
    {"mask_token_id", kTokens},
    {"decoder_start_token_id", kTokens},
    {"use_cache", kKernels},
    {"attn_implementation", kKernels},
    {"_attn_implementation*", kKernels},
    {"_flash_attn_2_enabled", kKernels},
    {"chunk_size_feed_forward", kKernels},
    {"gradient_checkpointing", kKernels},
    {"pretraining_tp", kKernels},
    {"torchscript", kKernels},
    {"use_bfloat16", kKernels},
    {"return_dict*", kOutputs},
    {"output_*", kOutputs},
    {"tie_last_hidden_states", kOutputs},
    {"id2label", kLabels},
    {"label2id", kLabels},
    {"num_labels", kLabels},
    {"_num_labels", kLabels},
    {"problem_type", kLabels},
    {"finetuning_task", kLabels},
    {"task_specific_params", kGeneration},
    {"prefix", kGeneration},
    {"is_decoder", "penstock's models are decoders"},
    {"is_causal", "penstock's models see no token that comes later", "true"},
    // How texts are generated, where older folders have it.
    {"max_length", kGeneration},
    {"min_length", kGeneration},
    {"do_sample", kGeneration},
    {"early_stopping", kGeneration},
    {"num_beams", kGeneration},
    {"num_beam_groups", kGeneration},
    {"diversity_penalty", kGeneration},
    {"temperature", kGeneration},
    {"top_k", kGeneration},
    {"top_p", kGeneration},
    {"typical_p", kGeneration},
    {"repetition_penalty", kGeneration},
    {"length_penalty", kGeneration},
    {"no_repeat_ngram_size", kGeneration},
    {"encoder_no_repeat_ngram_size", kGeneration},
    {"bad_words_ids", kGeneration},
    {"num_return_sequences", kGeneration},
    {"forced_bos_token_id", kGeneration},
    {"forced_eos_token_id", kGeneration},
    {"remove_invalid_values", kGeneration},
    {"exponential_decay_length_penalty", kGeneration},
    {"suppress_tokens", kGeneration},
    {"begin_suppress_tokens", kGeneration},
});

constexpr auto kGpt2Keys = std::to_array<PassedOver>({
    {"attn_pdrop", kDropout},
    {"embd_pdrop", kDropout},
    {"resid_pdrop", kDropout},
    {"summary_*", kLabels},
    {"n_ctx", "n_positions says it"},
    {"n_special", kMarks},
    {"predict_special_tokens", kMarks},
});

// Keys of Llama and its relatives.
constexpr auto kLlamaKeys = std::to_array<PassedOver>({
    {"attention_dropout", kDropout},
    {"hidden_dropout", kDropout},
    {"is_llama_config", kMarks},
    {"max_sequence_length", "longer samples are allowed"},
    {"rope_interleaved", "penstock turns the two halves of a head", "false"},
});

// Early folders name code by auto_map.  transformers has the family itself, and runs that code only
// where it is told to trust it.
constexpr auto kPhi3Keys = std::to_array<PassedOver>({
    {"auto_map", "transformers has this family itself"},
    {"full_attn_mod", "penstock has attention in all layers", "1"},
    {"interpolate_factor", "rope_scaling says it", "1"},
    {"embd_pdrop", kDropout},
    {"resid_pdrop", kDropout},
});

constexpr auto kSmolLM3Keys = std::to_array<PassedOver>({
    {"max_window_layers", "layer_types says it"},
});

// Keys of all of Gemma's.
constexpr auto kGemmaKeys = std::to_array<PassedOver>({
    {"hidden_act", "hidden_activation says it", "\"gelu_pytorch_tanh\""},
    {"hidden_activation", "hidden_act says it", "\"gelu_pytorch_tanh\""},
    {"cache_implementation", kKernels},
    {"sliding_window_size", "sliding_window says it"},
});

constexpr auto kRopeKeys = std::to_array<PassedOver>({
    {"type", "rope_type says it"},
});

constexpr std::string_view kAsDecoding = "penstock generate does the same";
constexpr std::string_view kDraws = "is of drawing";

constexpr auto kGenerationKeys = std::to_array<PassedOver>({
    {"_from_model_config", kMarks},
    {"transformers_version", kNames},
    {"bos_token_id", kTokens},
    {"pad_token_id", kTokens},
    {"decoder_start_token_id", kTokens},
    {"use_cache", kKernels},
    {"cache_*", kKernels},
    {"compile_config", kKernels},
    {"disable_compile", kKernels},
    {"prefill_chunk_size", kKernels},
    {"return_dict*", kOutputs},
    {"output_*", kOutputs},
    {"max_length", "--max-tokens says it"},
    {"max_new_tokens", "--max-tokens says it"},
    {"chat_format", "chat templates are not applied"},
    {"temperature", kDraws, "1"},
    {"top_k", kDraws, "0|50"},
    {"top_p", kDraws, "1"},
    {"min_p", kDraws, "0"},
    {"typical_p", kDraws, "1"},
    {"epsilon_cutoff", kDraws, "0"},
    {"eta_cutoff", kDraws, "0"},
    {"min_length", kAsDecoding, "0"},
    {"min_new_tokens", kAsDecoding, "0"},
    {"num_beams", kAsDecoding, "1"},
    {"num_beam_groups", kAsDecoding, "1"},
    {"num_return_sequences", kAsDecoding, "1"},
    {"diversity_penalty", kAsDecoding, "0"},
    {"repetition_penalty", kAsDecoding, "1"},
    {"encoder_repetition_penalty", kAsDecoding, "1"},
    {"length_penalty", "is of beams"},
    {"early_stopping", "is of beams"},
    {"no_repeat_ngram_size", kAsDecoding, "0"},
    {"encoder_no_repeat_ngram_size", kAsDecoding, "0"},
    {"guidance_scale", kAsDecoding, "1"},
    {"num_assistant_tokens*", kKernels},
    {"assistant_confidence_threshold", kKernels},
    {"assistant_lookbehind", kKernels},
    {"target_lookbehind", kKernels},
});

constexpr std::string_view kTensors = "the tensors' names say which linears have adapters";

constexpr auto kAdapterKeys = std::to_array<PassedOver>({
    {"peft_version", kNames},
    {"base_model_name_or_path", kNames},
    {"revision", kNames},
    {"auto_mapping", kNames},
    {"task_type", "penstock trains language models", "\"CAUSAL_LM\""},
    {"inference_mode", "penstock's command says whether it trains"},
    {"target_modules", kTensors},
    {"lora_dropout", "model.adapter.dropout says it"},
    {"fan_in_fan_out", "the model's linears say it, as in PEFT"},
    {"bias", "penstock's adapters leave biases as they are", "\"none\""},
    {"init_lora_weights", "PEFT changes the model's own weights by it",
     "true|false|\"gaussian\"|\"orthogonal\""},
    {"megatron_core", "names a package", "\"megatron.core\""},
    {"qalora_group_size", "is of use_qalora"},
});

std::vector<PassedOver> together(std::span<const PassedOver> a, std::span<const PassedOver> b) {
  std::vector<PassedOver> rows(a.begin(), a.end());
  rows.insert(rows.end(), b.begin(), b.end());
  return rows;
}

}  // namespace

std::span<const PassedOver> passed_over_keys(std::string_view family) {
  static const std::vector<PassedOver> gpt2 = together(kCommonKeys, kGpt2Keys);
  static const std::vector<PassedOver> llama = together(kCommonKeys, kLlamaKeys);
  static const std::vector<PassedOver> phi3 = together(kPhi3Keys, llama);
  static const std::vector<PassedOver> smollm3 = together(llama, kSmolLM3Keys);
  static const std::vector<PassedOver> gemma = together(llama, kGemmaKeys);
  if (family == "phi3") return phi3;
  if (family == "smollm3") return smollm3;
  if (family.starts_with("gemma")) return gemma;
  return family == "gpt2" ? gpt2 : llama;
}

std::span<const PassedOver> passed_over_rope_keys() { return kRopeKeys; }

std::span<const PassedOver> passed_over_generation_keys() { return kGenerationKeys; }

std::span<const PassedOver> passed_over_adapter_keys() { return kAdapterKeys; }

}  // namespace penstock::hugging_face
