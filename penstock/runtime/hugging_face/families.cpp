#include "penstock/runtime/hugging_face/families.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/json/origin.h"
#include "penstock/core/text.h"
#include "penstock/runtime/hugging_face/config_fields.h"
#include "penstock/runtime/hugging_face/config_keys.h"
#include "penstock/runtime/hugging_face/layer_fields.h"
#include "penstock/runtime/hugging_face/rotary_fields.h"

namespace penstock::hugging_face {
namespace {

using nn::DecoderOptions;

constexpr std::int64_t kLayersMax = std::int64_t{1} << 14;
constexpr double kParametersMax = 1e13;

void refuse_flag(ConfigFields& fields, std::string_view key, bool allowed) {
  if (fields.flag(key, allowed) == allowed) return;
  fields.refuse(key, str("penstock has ", allowed ? "true" : "false", " only"));
}

DecoderOptions gpt2_options(ConfigFields& fields) {
  refuse_flag(fields, "scale_attn_weights", true);
  refuse_flag(fields, "scale_attn_by_inverse_layer_idx", false);
  refuse_flag(fields, "reorder_and_upcast_attn", false);
  refuse_flag(fields, "add_cross_attention", false);
  const std::int64_t hidden = fields.count("n_embd"), heads = fields.count("n_head");
  if (hidden % heads != 0) {
    fields.refuse("n_head", str("must divide n_embd = ", hidden));
  }
  const std::string activation =
      fields.choice("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh", "gelu"});
  return {.form = nn::DecoderForm::Gpt2,
          .vocabulary = fields.count("vocab_size"),
          .layers = fields.count("n_layer", {}, kLayersMax),
          .hidden = hidden,
          .intermediate = fields.count("n_inner", 4 * hidden),
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .norm = nn::NormKind::Layer,
          .norm_epsilon = fields.number("layer_norm_epsilon", 1e-5),
          .mlp = activation == "gelu" ? nn::MlpKind::Gelu : nn::MlpKind::GeluTanh,
          .rotary = std::nullopt,
          .positions = fields.count("n_positions"),
          .qkv_bias = true,
          .output_bias = true,
          .mlp_bias = true,
          .tie_embeddings = fields.flag("tie_word_embeddings", true)};
}

// What a family has where config.json has no such key; null is as many as heads, or what divides
// the hidden size.
struct Absent {
  std::optional<std::int64_t> kv_heads = {}, head_dim = {};
  double epsilon = 1e-6;
  double theta = 10000.0;
  std::int64_t positions = 2048;
  bool ties = false;
};

std::int64_t read_kv_heads(ConfigFields& fields, std::int64_t heads, const Absent& absent) {
  const bool is_absent = absent.kv_heads && !fields.is_written("num_key_value_heads");
  const std::int64_t kv_heads =
      fields.count("num_key_value_heads", is_absent ? *absent.kv_heads : heads);
  if (heads % kv_heads != 0) {
    fields.refuse("num_key_value_heads",
                  str(is_absent ? str("is absent, which means ", kv_heads, ": ") : std::string(),
                      "must divide num_attention_heads = ", heads));
  }
  return kv_heads;
}

std::int64_t read_head_dim(ConfigFields& fields, std::int64_t hidden, std::int64_t heads,
                           const Absent& absent) {
  if (!fields.has("head_dim") && !absent.head_dim && hidden % heads != 0) {
    fields.refuse("num_attention_heads", str("must divide hidden_size = ", hidden));
  }
  const std::int64_t usual = absent.head_dim.value_or(std::max<std::int64_t>(1, hidden / heads));
  const std::int64_t head_dim = fields.count("head_dim", usual);
  if (head_dim % 2 != 0) {
    fields.refuse(fields.has("head_dim") ? "head_dim" : "hidden_size",
                  str("heads of ", head_dim, " elements cannot be turned: must be even"));
  }
  return head_dim;
}

// What all relatives of Llama have in common, but for activations and rotary positions.
DecoderOptions common_options(ConfigFields& fields, const Absent& absent) {
  const std::int64_t hidden = fields.count("hidden_size");
  const std::int64_t heads = fields.count("num_attention_heads");
  const std::int64_t kv_heads = read_kv_heads(fields, heads, absent);
  const std::int64_t head_dim = read_head_dim(fields, hidden, heads, absent);
  return {.form = nn::DecoderForm::Llama,
          .vocabulary = fields.count("vocab_size"),
          .layers = fields.count("num_hidden_layers", {}, kLayersMax),
          .hidden = hidden,
          .intermediate = fields.count("intermediate_size"),
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .norm = nn::NormKind::Rms,
          .norm_epsilon = fields.number("rms_norm_eps", absent.epsilon),
          .mlp = nn::MlpKind::SwiGlu,
          .positions = fields.count("max_position_embeddings", absent.positions),
          .tie_embeddings = fields.flag("tie_word_embeddings", absent.ties)};
}

RotaryFamily rotary_of(const DecoderOptions& options, const Absent& absent) {
  return {.theta = absent.theta, .head_dim = options.head_dim, .positions = options.positions};
}

DecoderOptions llama_form(ConfigFields& fields, const Absent& absent = {}) {
  fields.choice("hidden_act", "silu", {"silu", "swish"});
  DecoderOptions options = common_options(fields, absent);
  options.rotary = read_rotary(fields, rotary_of(options, absent));
  return options;
}

void read_attention_bias(ConfigFields& fields, DecoderOptions& options) {
  options.qkv_bias = options.output_bias = fields.flag("attention_bias", false);
}

void give_all_layers(DecoderOptions& options, std::optional<std::int64_t> window) {
  if (window) options.windows.assign(static_cast<std::size_t>(options.layers), window);
}

DecoderOptions llama_options(ConfigFields& fields) {
  DecoderOptions options = llama_form(fields);
  read_attention_bias(fields, options);
  options.mlp_bias = fields.flag("mlp_bias", false);
  return options;
}

DecoderOptions mistral_options(ConfigFields& fields) {
  DecoderOptions options = llama_form(fields, {.kv_heads = 8, .positions = 131072});
  give_all_layers(options, read_window(fields, 4096));
  return options;
}

DecoderOptions qwen2_options(ConfigFields& fields) {
  DecoderOptions options = llama_form(fields, {.kv_heads = 32, .positions = 32768});
  options.qkv_bias = true;
  read_qwen_windows(fields, options);
  return options;
}

DecoderOptions qwen3_options(ConfigFields& fields) {
  DecoderOptions options =
      llama_form(fields, {.kv_heads = 32, .head_dim = 128, .positions = 32768});
  read_attention_bias(fields, options);
  options.normalizes_queries_and_keys = true;
  read_qwen_windows(fields, options);
  return options;
}

DecoderOptions phi3_options(ConfigFields& fields) {
  const Absent absent{.epsilon = 1e-5, .positions = 4096};
  fields.choice("hidden_act", "silu", {"silu", "swish"});
  refuse_flag(fields, "attention_bias", false);
  DecoderOptions options = common_options(fields, absent);
  RotaryFamily rotary = rotary_of(options, absent);
  rotary.original_positions = 4096;
  rotary.turns_parts = rotary.is_phi = true;
  options.rotary = read_rotary(fields, rotary);
  options.fuses_projections = true;
  give_all_layers(options, read_window(fields, {}));
  return options;
}

DecoderOptions granite_options(ConfigFields& fields) {
  DecoderOptions options = llama_options(fields);
  options.embedding_scale = fields.number("embedding_multiplier", 1.0);
  options.residual_scale = fields.number("residual_multiplier", 1.0);
  options.attention_scale = fields.number("attention_multiplier", 1.0);
  options.logit_divisor = fields.number("logits_scaling", 1.0);
  return options;
}

DecoderOptions olmo2_options(ConfigFields& fields) {
  DecoderOptions options = llama_form(fields, {.epsilon = 1e-5});
  read_attention_bias(fields, options);
  options.norm_places = nn::NormPlaces::Behind;
  options.normalizes_queries_and_keys = options.normalizes_heads_together = true;
  return options;
}

DecoderOptions smollm3_options(ConfigFields& fields) {
  DecoderOptions options =
      llama_form(fields, {.kv_heads = 4, .theta = 2e6, .positions = 32768, .ties = true});
  read_attention_bias(fields, options);
  options.mlp_bias = fields.flag("mlp_bias", false);
  read_smollm3_layers(fields, options);
  return options;
}

constexpr const char* kGelu = "gelu_pytorch_tanh";

// What all of Gemma's have in common, but for activations and rotary positions.
DecoderOptions gemma_form(ConfigFields& fields, const Absent& absent) {
  DecoderOptions options = common_options(fields, absent);
  refuse_flag(fields, "use_bidirectional_attention", false);
  read_attention_bias(fields, options);
  options.mlp = nn::MlpKind::GeGluTanh;
  options.norm_offset = 1.0;
  options.embedding_scale = std::sqrt(static_cast<double>(options.hidden));
  options.rounds_embedding_scale = true;
  return options;
}

DecoderOptions gemma_options(ConfigFields& fields) {
  const Absent absent{.kv_heads = 16, .head_dim = 256, .positions = 8192, .ties = true};
  fields.choice("hidden_act", kGelu, {kGelu, "gelu_new", "gelu"});  // All of them by tanh.
  DecoderOptions options = gemma_form(fields, absent);
  options.rotary = read_rotary(fields, rotary_of(options, absent));
  return options;
}

// What Gemma 2 and 3 have in common.
DecoderOptions later_gemma_form(ConfigFields& fields, const Absent& absent) {
  fields.choice("hidden_activation", kGelu, {kGelu, "gelu_new"});
  DecoderOptions options = gemma_form(fields, absent);
  options.norm_places = nn::NormPlaces::Around;
  options.attention_scale = 1.0 / std::sqrt(fields.number("query_pre_attn_scalar", 256.0));
  return options;
}

DecoderOptions gemma2_options(ConfigFields& fields) {
  const Absent absent{.kv_heads = 4, .head_dim = 256, .positions = 8192, .ties = true};
  DecoderOptions options = later_gemma_form(fields, absent);
  options.rotary = read_rotary(fields, rotary_of(options, absent));
  options.score_cap = fields.optional_number("attn_logit_softcapping", 50.0);
  options.logit_cap = fields.optional_number("final_logit_softcapping", 30.0);
  read_alternating_windows(fields, options, /*period=*/2, 4096);
  return options;
}

DecoderOptions gemma3_options(ConfigFields& fields) {
  const Absent absent{
      .kv_heads = 4, .head_dim = 256, .theta = 1e6, .positions = 131072, .ties = true};
  DecoderOptions options = later_gemma_form(fields, absent);
  const TwoRotaries rotaries =
      read_two_rotaries(fields, rotary_of(options, absent), /*theta_of_windows=*/1e4);
  options.rotary = rotaries.full;
  options.rotary_of_windows = rotaries.of_windows;
  options.logit_cap = fields.optional_number("final_logit_softcapping", {});
  options.normalizes_queries_and_keys = true;
  // transformers writes it beside layer_types, and reads it nowhere.
  if (fields.has("layer_types")) fields.count("_sliding_window_pattern", 6);
  read_alternating_windows(fields, options, fields.count("sliding_window_pattern", 6), 4096);
  return options;
}

struct Family {
  const char* name;
  DecoderOptions (*read)(ConfigFields& fields);
};

constexpr auto kFamilies = std::to_array<Family>({{"gemma", gemma_options},
                                                  {"gemma2", gemma2_options},
                                                  {"gemma3_text", gemma3_options},
                                                  {"gpt2", gpt2_options},
                                                  {"granite", granite_options},
                                                  {"llama", llama_options},
                                                  {"mistral", mistral_options},
                                                  {"olmo2", olmo2_options},
                                                  {"phi3", phi3_options},
                                                  {"qwen2", qwen2_options},
                                                  {"qwen3", qwen3_options},
                                                  {"smollm3", smollm3_options}});

double elements_of(const DecoderOptions& options) {
  double all = 0.0;
  for (const nn::DecoderParameter& parameter : nn::decoder_parameters(options)) {
    double elements = 1.0;
    for (const std::int64_t size : parameter.shape) elements *= static_cast<double>(size);
    all += elements;
  }
  return all;
}

// Each size may be one of a model, and all of them together more than any machine has.
void check_size(const DecoderOptions& options, const json::Value& config) {
  const double parameters = elements_of(options);
  if (parameters <= kParametersMax) return;
  throw ConfigError(str(to_string(origin_of(config)), ": its sizes make a model of ",
                        shortest(parameters), " parameters; penstock takes up to ",
                        shortest(kParametersMax)));
}

}  // namespace

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

nn::DecoderOptions read_options(const json::Value& config) {
  if (!std::holds_alternative<json::Value::Object>(config.data)) {
    throw ConfigError(
        str(to_string(origin_of(config)), ": expected an object, found ", json::found(config)));
  }
  ConfigFields fields(config);
  const std::string name = fields.choice("model_type", "", families());
  if (name.empty()) {
    if (!fields.has("model_type")) {
      fields.refuse("model_type", str("is missing; penstock has ", join(families(), ", ")));
    }
    fields.finish();
  }
  if (fields.has("quantization_config")) {
    fields.refuse("quantization_config", "penstock trains weights that are not quantized");
  }
  const auto family = std::ranges::find(kFamilies, name, &Family::name);
  DecoderOptions options = family->read(fields);
  fields.refuse_unread(passed_over_keys(name));
  fields.finish();
  check_size(options, config);
  return options;
}

double read_standard_deviation(const json::Value& config) {
  ConfigFields fields(config);
  const double deviation = fields.number("initializer_range", 0.02);
  fields.finish();
  return deviation;
}

}  // namespace penstock::hugging_face
