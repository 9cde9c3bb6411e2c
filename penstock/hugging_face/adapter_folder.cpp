#include "penstock/hugging_face/adapter_folder.h"

#include <filesystem>
#include <map>
#include <string_view>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/weights/atomic_file.h"

namespace penstock::hugging_face {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kTensorsName = "adapter_model.safetensors";

bool is_gpt2(const ModelFolder& model) { return model.options().form == nn::DecoderForm::Gpt2; }

std::string config_text(const ModelFolder& model, const std::string& base,
                        const nn::AdapterOptions& adapter) {
  std::vector<std::string> targets;
  for (const std::string& name : nn::linear_names(model.options())) {
    if (adapter.adapts(name)) targets.push_back(json_quote(name));
  }
  return str("{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n",
             "  \"base_model_name_or_path\": ", json_quote(base), ",\n  \"r\": ", adapter.rank,
             ",\n  \"lora_alpha\": ", shortest(adapter.alpha),
             ",\n  \"lora_dropout\": 0.0,\n  \"bias\": \"none\",\n  \"target_modules\": [",
             join(targets, ", "), "],\n  \"fan_in_fan_out\": ", is_gpt2(model) ? "true" : "false",
             ",\n  \"inference_mode\": true\n}\n");
}

}  // namespace

weights::NamedTensors adapters_of(const weights::NamedTensors& state) {
  weights::NamedTensors adapters;
  for (const auto& [name, tensor] : state) {
    if (nn::is_of_adapter(name)) adapters.emplace_back(str(kPrefix, name), tensor);
  }
  return adapters;
}

weights::NamedTensors merged(const weights::NamedTensors& state, const ModelFolder& model,
                             const nn::AdapterOptions& adapter) {
  const std::map<std::string, at::Tensor> by_name(state.begin(), state.end());
  weights::NamedTensors all;
  for (const auto& [name, tensor] : state) {
    if (nn::is_of_adapter(name)) continue;
    const std::string linear = name.substr(0, name.rfind('.'));
    const auto a = by_name.find(str(linear, ".", nn::kAdapterIn, ".weight"));
    const bool is_adapted = a != by_name.end() && name.ends_with(".weight");
    if (!is_adapted) {
      all.emplace_back(name, tensor);
      continue;
    }
    const at::Tensor& b = by_name.at(str(linear, ".", nn::kAdapterOut, ".weight"));
    all.emplace_back(name, nn::merged(tensor, a->second, b, adapter, is_gpt2(model)));
  }
  return all;
}

void check_adapter_target(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(str(folder, "/config.json"), error)) return;
  throw ConfigError(
      str("run.save = ", quoted_path(folder), ": has a model; adapters need a folder of their own"),
      {"save to another folder, or set model.adapter.merge to save a whole model"});
}

void write_adapters(const std::string& folder, const weights::NamedTensors& adapters,
                    const ModelFolder& model, const std::string& base,
                    const nn::AdapterOptions& adapter) {
  const std::string config = str(folder, "/", kConfigName);
  std::error_code error;
  fs::remove(config, error);
  if (error) throw CheckpointError(str(quoted_path(config), ": ", error.message()));
  weights::write_safetensors(str(folder, "/", kTensorsName), adapters, {{"format", "pt"}});
  weights::write_atomically(config, {config_text(model, fs::absolute(base).string(), adapter)});
}

}  // namespace penstock::hugging_face
