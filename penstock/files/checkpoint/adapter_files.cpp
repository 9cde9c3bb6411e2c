#include "penstock/files/checkpoint/adapter_files.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <variant>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

// GPT-2's.
constexpr std::array<std::string_view, 3> kInOut = {"c_attn", "c_proj", "c_fc"};

// A value of the run's configuration, which facts have as JSON.
json::Value value_of(const Manifest& manifest, const std::string& key) {
  const auto found = manifest.facts.find("config " + key);
  if (found == manifest.facts.end()) {
    throw CheckpointError(str("the checkpoint has adapters and does not say ", key,
                              ": `penstock train` did not save it"));
  }
  return json::parse(std::make_shared<json::Source>("the checkpoint's facts", found->second));
}

double number_of(const Manifest& manifest, const std::string& key) {
  const json::Value value = value_of(manifest, key);
  if (const auto* whole = std::get_if<std::int64_t>(&value.data)) {
    return static_cast<double>(*whole);
  }
  if (const auto* real = std::get_if<double>(&value.data)) return *real;
  throw CheckpointError(str("the checkpoint's fact ", key, " is no number"));
}

// "q_proj" of "layers.0.self_attn.q_proj.lora_A.weight".
std::string_view linear_of(std::string_view parameter) {
  const std::string_view linear = parameter.substr(0, parameter.find(str(".", kAdapterIn, ".")));
  return linear.substr(linear.rfind('.') + 1);
}

}  // namespace

bool is_of_adapter(std::string_view parameter) {
  return parameter.find(str(".", kAdapterIn, ".")) != std::string_view::npos ||
         parameter.find(str(".", kAdapterOut, ".")) != std::string_view::npos;
}

std::string to_text(const AdapterConfig& config) {
  std::vector<std::string> targets;
  for (const std::string& target : config.targets) targets.push_back(json_quote(target));
  return str("{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n",
             "  \"base_model_name_or_path\": ", config.base ? json_quote(*config.base) : "null",
             ",\n  \"r\": ", config.rank, ",\n  \"lora_alpha\": ", shortest(config.alpha),
             ",\n  \"lora_dropout\": ", shortest(config.dropout),
             ",\n  \"bias\": \"none\",\n  \"target_modules\": [", join(targets, ", "),
             "],\n  \"fan_in_fan_out\": ", config.is_in_out ? "true" : "false",
             ",\n  \"inference_mode\": true\n}\n");
}

bool has_adapters(const Manifest& manifest) {
  return std::ranges::any_of(manifest.tensors, [](const Tensor& tensor) {
    return tensor.state == kWeight && is_of_adapter(tensor.name);
  });
}

AdapterConfig adapter_config_of(const Manifest& manifest) {
  std::set<std::string> targets;
  for (const Tensor& tensor : manifest.tensors) {
    if (tensor.state == kWeight &&
        tensor.name.find(str(".", kAdapterIn, ".")) != std::string::npos) {
      targets.emplace(linear_of(tensor.name));
    }
  }
  if (targets.empty()) throw CheckpointError("the checkpoint has no adapters");
  return {.rank = static_cast<std::int64_t>(number_of(manifest, "model.adapter.rank")),
          .alpha = number_of(manifest, "model.adapter.alpha"),
          .dropout = number_of(manifest, "model.adapter.dropout"),
          .targets = {targets.begin(), targets.end()},
          .is_in_out = std::ranges::any_of(
              kInOut, [&](std::string_view name) { return targets.contains(std::string(name)); })};
}

}  // namespace penstock::checkpoint
