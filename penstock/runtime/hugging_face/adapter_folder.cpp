#include "penstock/runtime/hugging_face/adapter_folder.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/adapter_files.h"
#include "penstock/runtime/hugging_face/config_fields.h"
#include "penstock/runtime/hugging_face/config_keys.h"
#include "penstock/runtime/weights/tensor_files.h"

namespace penstock::hugging_face {
namespace {

namespace fs = std::filesystem;

using checkpoint::kAdapterConfigName;
using checkpoint::kAdapterPrefix;
using checkpoint::kAdapterTensorsName;

static_assert(checkpoint::kAdapterIn == nn::kAdapterIn);
static_assert(checkpoint::kAdapterOut == nn::kAdapterOut);

bool is_gpt2(const ModelFolder& model) { return model.options().form == nn::DecoderForm::Gpt2; }

checkpoint::AdapterConfig config_of(const ModelFolder& model, const nn::AdapterOptions& adapter) {
  std::vector<std::string> targets;
  for (const std::string& name : nn::linear_names(model.options())) {
    if (adapter.adapts(name)) targets.push_back(name);
  }
  return {.base = fs::absolute(model.path()).string(),
          .rank = adapter.rank,
          .alpha = adapter.alpha,
          .dropout = adapter.dropout,
          .targets = targets,
          .is_in_out = is_gpt2(model)};
}

// What config.json of the adapters says, where it is not what the run's configuration says.
void check_config(const std::string& folder, const nn::AdapterOptions& adapter) {
  const std::string file = str(folder, "/", kAdapterConfigName);
  std::error_code error;
  if (!fs::exists(file, error)) {
    throw ConfigError(str("model.adapter.path = ", quoted_path(folder), ": has no ",
                          kAdapterConfigName, " in it"));
  }
  const std::string text =
      read_foreign_file("the configuration of adapters", file, json::kBytesMax);
  const json::Value config =
      json::parse(std::make_shared<json::Source>(json::Source{.name = file, .text = text}));
  ConfigFields fields(config);
  fields.choice("peft_type", "LORA", {"LORA"});
  for (const char* const key : {"use_dora", "use_rslora"}) {
    if (fields.flag(key, false)) fields.refuse(key, "penstock has false only");
  }
  if (fields.count("r") != adapter.rank) {
    fields.refuse("r", str("model.adapter.rank is ", adapter.rank));
  }
  if (fields.number("lora_alpha") != adapter.alpha) {
    fields.refuse("lora_alpha", str("model.adapter.alpha is ", shortest(adapter.alpha)));
  }
  fields.refuse_unread(passed_over_adapter_keys());
  fields.finish();
}

std::vector<nn::DecoderParameter> parameters_of(const ModelFolder& model,
                                                const nn::AdapterOptions& adapter) {
  nn::DecoderOptions options = model.options();
  options.adapter = adapter;
  std::vector<nn::DecoderParameter> parameters = nn::decoder_parameters(options);
  std::erase_if(parameters, [](const auto& each) { return !nn::is_of_adapter(each.name); });
  return parameters;
}

// The file's tensors by their parameters' names, and their names in the file.
using StoredNames = std::map<std::string, std::string>;

StoredNames stored_names(const weights::TensorFiles& files) {
  StoredNames names;
  for (const auto& [name, stored] : files.tensors()) {
    const std::string_view own(name);
    names.emplace(own.substr(own.starts_with(kAdapterPrefix) ? kAdapterPrefix.size() : 0), name);
  }
  return names;
}

void check_tensors(const weights::TensorFiles& files, const StoredNames& stored,
                   const std::vector<nn::DecoderParameter>& parameters) {
  std::vector<std::string> problems;
  std::set<std::string> known;
  for (const nn::DecoderParameter& each : parameters) {
    known.insert(each.name);
    const auto found = stored.find(each.name);
    if (found == stored.end()) {
      problems.push_back(str(each.name, " is missing"));
      continue;
    }
    const weights::TensorFiles::Stored& tensor = files.tensors().at(found->second);
    if (tensor.shape != each.shape) {
      problems.push_back(str(each.name, " is [", join(tensor.shape, ", "), "] and the model's is [",
                             join(each.shape, ", "), "]"));
    } else if (!weights::is_weight_type(tensor.type)) {
      problems.push_back(str(each.name, " is ",
                             checkpoint::kScalarTypes[static_cast<std::size_t>(tensor.type)],
                             " and no F32, F64, BF16 or F16"));
    }
  }
  for (const auto& [name, tensor] : stored) {
    if (!known.contains(name)) problems.push_back(str(name, " is of no linear that is adapted"));
  }
  if (problems.empty()) return;
  constexpr std::size_t kTold = 8;
  if (problems.size() > kTold) {
    const std::size_t more = problems.size() - kTold;
    problems.resize(kTold);
    problems.push_back(str("and ", more, " more"));
  }
  throw ConfigError(str("the adapters in ", quoted_path(files.folder()),
                        " are not those that model.adapter.targets asks for"),
                    problems);
}

}  // namespace

SavedAdapters read_adapters(const std::string& folder, const ModelFolder& model,
                            const nn::AdapterOptions& adapter) {
  check_config(folder, adapter);
  const weights::TensorFiles files(folder, kAdapterTensorsName);
  const StoredNames stored = stored_names(files);
  check_tensors(files, stored, parameters_of(model, adapter));
  std::uint64_t hash = 0;
  for (const auto& [name, tensor] : files.tensors()) {
    hash = mix(hash ^ stable_hash(name) ^ stable_hash(files.bytes_of(name, 0, tensor.bytes)));
  }
  const auto fill = [files, stored](const std::string& name, at::Tensor& to,
                                    const partition::Cut& cut) {
    const std::string& own = stored.at(name);
    files.read(own, to, partition::box_of(cut, files.tensors().at(own).shape));
  };
  return {.fill = fill, .facts = {{agreement::Fact::ModelAdapters, str(hash)}}};
}

weights::NamedTensors adapters_of(const weights::NamedTensors& state) {
  weights::NamedTensors adapters;
  for (const auto& [name, tensor] : state) {
    if (nn::is_of_adapter(name)) adapters.emplace_back(str(kAdapterPrefix, name), tensor);
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
                    const ModelFolder& model, const nn::AdapterOptions& adapter) {
  PreparedFile tensors = weights::prepare_safetensors(str(folder, "/", kAdapterTensorsName),
                                                      adapters, {{"format", "pt"}});
  try {
    const std::string text = checkpoint::to_text(config_of(model, adapter));
    PreparedFile config(str(folder, "/", kAdapterConfigName), std::vector<std::string_view>{text});
    replace_together({&tensors, 1}, config);
  } catch (const Error& error) {
    throw CheckpointError(error.message());
  }
}

}  // namespace penstock::hugging_face
