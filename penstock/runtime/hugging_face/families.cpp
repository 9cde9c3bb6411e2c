#include "penstock/runtime/hugging_face/families.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/json/origin.h"
#include "penstock/core/text.h"
#include "penstock/runtime/hugging_face/config_fields.h"
#include "penstock/runtime/hugging_face/config_keys.h"

namespace penstock::hugging_face {
namespace {

using nn::DecoderOptions;
using nn::RotaryScaling;

constexpr std::int64_t kLayersMax = std::int64_t{1} << 14;
constexpr double kParametersMax = 1e13;
constexpr std::int64_t kWindow = 4096;  // Default of a family's sliding_window.

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

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

// Reads the scaling and its base: transformers 5 has "rope_parameters", earlier ones
// "rope_scaling", beside "rope_theta".
nn::RotaryOptions read_rotary(ConfigFields& fields) {
  nn::RotaryOptions rotary{.theta = fields.number("rope_theta", 10000.0)};
  if (fields.number("partial_rotary_factor", 1.0) != 1.0) {
    fields.refuse("partial_rotary_factor", "penstock turns whole heads");
  }
  const bool is_new = fields.has("rope_parameters");
  if (is_new && fields.has("rope_scaling")) {
    fields.refuse("rope_scaling", "rope_parameters is there, too: which one is meant?");
  }
  auto scaling = fields.object(is_new ? "rope_parameters" : "rope_scaling");
  if (!scaling) return rotary;
  const char* const type_key = scaling->has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling->choice(type_key, "default", {"default", "linear", "llama3"});
  if (scaling->has(kFull)) scaling->refuse(kFull, "penstock has one base for all layers");
  if (scaling->number("partial_rotary_factor", 1.0) != 1.0) {
    scaling->refuse("partial_rotary_factor", "penstock turns whole heads");
  }
  rotary.theta = scaling->number("rope_theta", rotary.theta);
  if (type != "default") rotary.factor = scaling->number("factor");
  if (type == "linear") rotary.scaling = RotaryScaling::Linear;
  if (type == "llama3") {
    rotary.scaling = RotaryScaling::Llama3;
    rotary.low_frequency_factor = scaling->number("low_freq_factor");
    rotary.high_frequency_factor = scaling->number("high_freq_factor");
    rotary.original_positions = scaling->count("original_max_position_embeddings");
    if (rotary.high_frequency_factor <= rotary.low_frequency_factor) {
      scaling->refuse("high_freq_factor", "must be above low_freq_factor");
    }
  }
  scaling->refuse_unread(passed_over_rope_keys());
  fields.take_problems(*scaling);
  return rotary;
}

// What a family has where config.json has no such key; null is as many as heads, or what divides
// the hidden size.
struct Absent {
  std::optional<std::int64_t> kv_heads, head_dim;
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

// What all relatives of Llama have in common.
DecoderOptions llama_form(ConfigFields& fields, const Absent& absent = {}) {
  fields.choice("hidden_act", "silu", {"silu", "swish"});
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
          .norm_epsilon = fields.number("rms_norm_eps", 1e-6),
          .mlp = nn::MlpKind::SwiGlu,
          .rotary = read_rotary(fields),
          .positions = fields.count("max_position_embeddings", 2048),
          .tie_embeddings = fields.flag("tie_word_embeddings", false)};
}

DecoderOptions llama_options(ConfigFields& fields) {
  DecoderOptions options = llama_form(fields);
  options.qkv_bias = options.output_bias = fields.flag("attention_bias", false);
  options.mlp_bias = fields.flag("mlp_bias", false);
  return options;
}

// Null is none.
std::optional<std::int64_t> read_window(ConfigFields& fields) {
  const auto window = fields.optional_count("sliding_window");
  return fields.is_written("sliding_window") ? window : kWindow;
}

DecoderOptions mistral_options(ConfigFields& fields) {
  DecoderOptions options = llama_form(fields, {.kv_heads = 8, .head_dim = {}});
  if (const auto window = read_window(fields)) {
    options.windows.assign(static_cast<std::size_t>(options.layers), *window);
  }
  return options;
}

// Whether each layer has the window, as layer_types says; none where it is absent or wrong.
std::optional<std::vector<bool>> read_layer_types(ConfigFields& fields, std::size_t layers) {
  const auto types = fields.texts("layer_types");
  if (!types) return std::nullopt;
  if (types->size() != layers) {
    fields.refuse("layer_types", str("expected one for each of ", layers, " layers"));
    return std::nullopt;
  }
  std::vector<bool> slides;
  for (const std::string& type : *types) {
    slides.push_back(type == kSliding);
    if (type == kSliding || type == kFull) continue;
    fields.refuse("layer_types",
                  str("layer ", slides.size() - 1, " is ", in_quotes(type), "; penstock has ",
                      in_quotes(kFull), " and ", in_quotes(kSliding)));
    return std::nullopt;
  }
  return slides;
}

// Reads which layers of a Qwen have the window: those that layer_types says, or those from
// max_window_layers on.
void read_windows(ConfigFields& fields, DecoderOptions& options) {
  const auto layers = static_cast<std::size_t>(options.layers);
  const auto window = read_window(fields);
  const bool uses = fields.flag("use_sliding_window", false);
  const bool says_first = fields.has("max_window_layers");
  const auto slides = read_layer_types(fields, layers);
  if (!uses) {
    if (slides && std::ranges::find(*slides, true) != slides->end()) {
      fields.refuse("layer_types", "some layers have a window, and use_sliding_window is false");
    }
    return;
  }
  if (!window) {
    fields.refuse("use_sliding_window", "needs sliding_window");
    return;
  }
  const auto first = static_cast<std::size_t>(says_first ? fields.count("max_window_layers") : 28);
  for (std::size_t i = 0; i < layers; ++i) {
    options.windows.push_back((slides ? (*slides)[i] : i >= first) ? window : std::nullopt);
  }
}

DecoderOptions qwen2_options(ConfigFields& fields) {
  DecoderOptions options = llama_form(fields, {.kv_heads = 32, .head_dim = {}});
  options.qkv_bias = true;
  read_windows(fields, options);
  return options;
}

DecoderOptions qwen3_options(ConfigFields& fields) {
  DecoderOptions options = llama_form(fields, {.kv_heads = 32, .head_dim = 128});
  options.qkv_bias = options.output_bias = fields.flag("attention_bias", false);
  options.normalizes_queries_and_keys = true;
  read_windows(fields, options);
  return options;
}

struct Family {
  const char* name;
  DecoderOptions (*read)(ConfigFields& fields);
};

constexpr std::array<Family, 5> kFamilies = {{{"gpt2", gpt2_options},
                                              {"llama", llama_options},
                                              {"mistral", mistral_options},
                                              {"qwen2", qwen2_options},
                                              {"qwen3", qwen3_options}}};

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
