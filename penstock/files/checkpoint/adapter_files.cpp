#include "penstock/files/checkpoint/adapter_files.h"

#include <algorithm>
#include <array>
#include <memory>
#include <regex>
#include <set>
#include <variant>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/parameter_names.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

// GPT-2's.
constexpr std::array<std::string_view, 3> kInOut = {"c_attn", "c_proj", "c_fc"};

// A value of the run's configuration, which facts have as JSON; absent where they do not have it.
std::optional<json::Value> find_value(const Manifest& manifest, const std::string& key) {
  const auto found = manifest.facts.find("config " + key);
  if (found == manifest.facts.end()) return std::nullopt;
  return json::parse(std::make_shared<json::Source>("the checkpoint's facts", found->second));
}

json::Value value_of(const Manifest& manifest, const std::string& key) {
  if (auto found = find_value(manifest, key)) return *std::move(found);
  throw CheckpointError(str("the checkpoint has adapters and does not say ", key,
                            ": `penstock train` did not save it"));
}

double number_in(const json::Value& value, const std::string& key) {
  if (const auto* whole = std::get_if<std::int64_t>(&value.data)) {
    return static_cast<double>(*whole);
  }
  if (const auto* real = std::get_if<double>(&value.data)) return *real;
  throw CheckpointError(str("the checkpoint's fact ", key, " is no number"));
}

double number_of(const Manifest& manifest, const std::string& key) {
  return number_in(value_of(manifest, key), key);
}

bool flag_of(const Manifest& manifest, const std::string& key) {
  const auto value = find_value(manifest, key);
  const bool* const flag = value ? std::get_if<bool>(&value->data) : nullptr;
  return flag != nullptr && *flag;
}

std::vector<std::pair<std::string, double>> numbers_of(const Manifest& manifest,
                                                       const std::string& key) {
  const auto value = find_value(manifest, key);
  std::vector<std::pair<std::string, double>> numbers;
  const auto* const object = value ? std::get_if<json::Value::Object>(&value->data) : nullptr;
  if (object != nullptr) {
    for (const json::Member& each : *object) {
      numbers.emplace_back(each.key, number_in(each.value, key));
    }
  }
  return numbers;
}

std::string text_of(const std::vector<std::pair<std::string, double>>& numbers) {
  std::vector<std::string> members;
  for (const auto& [name, number] : numbers) {
    members.push_back(str(json_quote(name), ": ", shortest(number)));
  }
  return str("{", join(members, ", "), "}");
}

std::string text_of(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(json_quote(name));
  return str("[", join(quoted, ", "), "]");
}

}  // namespace

std::string name_in_file(const std::string& parameter) {
  const bool are_lengths = is_within(kAdapterLengths, parameter);
  return str(kAdapterPrefix, are_lengths ? parameter.substr(0, parameter.rfind('.')) : parameter);
}

std::string to_text(const AdapterConfig& config) {
  return str(
      "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n",
      "  \"base_model_name_or_path\": ", config.base ? json_quote(*config.base) : "null",
      ",\n  \"r\": ", config.rank, ",\n  \"lora_alpha\": ", shortest(config.alpha),
      ",\n  \"lora_dropout\": ", shortest(config.dropout),
      ",\n  \"bias\": \"none\",\n  \"target_modules\": ", text_of(config.targets),
      ",\n  \"rank_pattern\": ", text_of(config.ranks),
      ",\n  \"alpha_pattern\": ", text_of(config.alphas),
      ",\n  \"use_rslora\": ", config.is_rank_stabilized ? "true" : "false",
      ",\n  \"use_dora\": ", config.has_lengths ? "true" : "false",
      ",\n  \"modules_to_save\": ", config.trained.empty() ? "null" : text_of(config.trained),
      ",\n  \"fan_in_fan_out\": ", config.is_in_out ? "true" : "false",
      ",\n  \"inference_mode\": true\n}\n");
}

bool has_adapters(const Manifest& manifest) {
  return std::ranges::any_of(manifest.tensors, [](const Tensor& tensor) {
    return tensor.state == kWeight && is_of_adapter(tensor.name);
  });
}

std::set<std::string> parameters_of_adapters(const Manifest& manifest) {
  const auto pattern = find_value(manifest, "model.adapter.modules_to_save");
  const auto* const text = pattern ? std::get_if<std::string>(&pattern->data) : nullptr;
  const std::regex modules(text == nullptr ? "" : *text);
  std::set<std::string> names;
  for (const Tensor& tensor : manifest.tensors) {
    if (tensor.state != kWeight) continue;
    if (is_of_adapter(tensor.name) || std::regex_match(module_of(tensor.name), modules)) {
      names.insert(tensor.name);
    }
  }
  return names;
}

AdapterConfig adapter_config_of(const Manifest& manifest) {
  std::set<std::string> targets, trained;
  for (const std::string& name : parameters_of_adapters(manifest)) {
    if (!is_of_adapter(name)) trained.insert(module_of(name));
    if (is_within(kAdapterIn, name)) targets.emplace(last_name(linear_of(name)));
  }
  if (targets.empty()) throw CheckpointError("the checkpoint has no adapters");
  return {.rank = static_cast<std::int64_t>(number_of(manifest, "model.adapter.rank")),
          .alpha = number_of(manifest, "model.adapter.alpha"),
          .dropout = number_of(manifest, "model.adapter.dropout"),
          .targets = {targets.begin(), targets.end()},
          .is_in_out = std::ranges::any_of(
              kInOut, [&](std::string_view name) { return targets.contains(std::string(name)); }),
          .is_rank_stabilized = flag_of(manifest, "model.adapter.use_rslora"),
          .has_lengths = flag_of(manifest, "model.adapter.use_dora"),
          .ranks = numbers_of(manifest, "model.adapter.rank_pattern"),
          .alphas = numbers_of(manifest, "model.adapter.alpha_pattern"),
          .trained = {trained.begin(), trained.end()}};
}

}  // namespace penstock::checkpoint
