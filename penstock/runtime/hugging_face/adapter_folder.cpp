#include "penstock/runtime/hugging_face/adapter_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/parameter_names.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/adapter_files.h"
#include "penstock/files/checkpoint/model_files.h"
#include "penstock/runtime/hugging_face/config_fields.h"
#include "penstock/runtime/hugging_face/config_keys.h"
#include "penstock/runtime/weights/new_model.h"
#include "penstock/runtime/weights/tensor_files.h"

namespace penstock::hugging_face {
namespace {

namespace fs = std::filesystem;

using checkpoint::kAdapterConfigName;
using checkpoint::kAdapterPrefix;
using checkpoint::kAdapterTensorsName;

bool is_gpt2(const ModelFolder& model) { return model.options().form == nn::DecoderForm::Gpt2; }

checkpoint::AdapterConfig config_of(const ModelFolder& model, const nn::AdapterOptions& adapter) {
  std::vector<std::string> targets;
  for (const std::string& name : nn::linear_names(model.options())) {
    if (adapter.adapts(name)) targets.push_back(name);
  }
  std::set<std::string> trained;
  for (const nn::DecoderParameter& each : nn::decoder_parameters(model.options())) {
    if (adapter.trains(each.name)) trained.insert(module_of(each.name));
  }
  return {.base = model.name(),
          .rank = adapter.rank,
          .alpha = adapter.alpha,
          .dropout = adapter.dropout,
          .targets = targets,
          .is_in_out = is_gpt2(model),
          .is_rank_stabilized = adapter.is_rank_stabilized,
          .has_lengths = adapter.has_lengths,
          .ranks = {adapter.ranks.begin(), adapter.ranks.end()},
          .alphas = adapter.alphas,
          .trained = {trained.begin(), trained.end()}};
}

std::vector<nn::DecoderParameter> parameters_of(const ModelFolder& model,
                                                const nn::AdapterOptions& adapter) {
  nn::DecoderOptions options = model.options();
  options.adapter = adapter;
  std::vector<nn::DecoderParameter> parameters = nn::decoder_parameters(options);
  std::erase_if(parameters, [&](const auto& each) { return !adapter.trains(each.name); });
  return parameters;
}

template <class Number>
nn::ByLinear<Number> numbers_in(ConfigFields& fields, const char* key) {
  nn::ByLinear<Number> numbers;
  std::optional<ConfigFields> object = fields.object(key);
  if (!object) return numbers;
  for (const std::string& name : object->keys()) {
    numbers.emplace_back(name, static_cast<Number>(object->number(name)));
  }
  fields.take_problems(*object);
  return numbers;
}

// Linears of which the folder's adapters have other numbers than the configuration says.
void check_patterns(ConfigFields& fields, nn::AdapterOptions theirs, const ModelFolder& model,
                    const nn::AdapterOptions& ours) {
  theirs.ranks = numbers_in<std::int64_t>(fields, "rank_pattern");
  theirs.alphas = numbers_in<double>(fields, "alpha_pattern");
  for (const nn::DecoderParameter& each : parameters_of(model, ours)) {
    if (!is_within(kAdapterIn, each.name)) continue;
    const std::string linear(linear_of(each.name));
    if (theirs.rank_of(linear) != ours.rank_of(linear)) {
      return fields.refuse(
          "rank_pattern",
          str("gives ", linear, " the rank ", theirs.rank_of(linear), ", the configuration ",
              ours.rank_of(linear), "; model.adapter.rank_pattern says it"));
    }
    if (theirs.scale_of(linear) != ours.scale_of(linear)) {
      return fields.refuse(
          "alpha_pattern",
          str("multiplies the adapter of ", linear, " by ", shortest(theirs.scale_of(linear)),
              ", the configuration by ", shortest(ours.scale_of(linear)),
              "; model.adapter.alpha_pattern says it"));
    }
  }
}

// adapter_config.json of a folder that `what` names.
json::Value config_in(const std::string& folder, const char* what) {
  const std::string file = str(folder, "/", kAdapterConfigName);
  std::error_code error;
  if (!fs::exists(file, error)) {
    throw ConfigError(
        str(what, " = ", quoted_path(folder), ": has no ", kAdapterConfigName, " in it"));
  }
  const std::string text =
      read_foreign_file("the configuration of adapters", file, json::kBytesMax);
  return json::parse(std::make_shared<json::Source>(json::Source{.name = file, .text = text}));
}

// What config.json of the adapters says, where it is not what the run's configuration says.
void check_config(const std::string& folder, const ModelFolder& model,
                  const nn::AdapterOptions& adapter) {
  const json::Value config = config_in(folder, "model.adapter.path");
  ConfigFields fields(config);
  fields.choice("peft_type", "LORA", {"LORA"});
  const std::pair<const char*, bool> flags[] = {{"use_dora", adapter.has_lengths},
                                                {"use_rslora", adapter.is_rank_stabilized}};
  bool are_alike = true;
  for (const auto& [key, own] : flags) {
    if (fields.flag(key, false) == own) continue;
    fields.refuse(key, str("model.adapter.", key, " is ", own ? "true" : "false"));
    are_alike = false;
  }
  for (const std::string& module :
       fields.texts("modules_to_save").value_or(std::vector<std::string>())) {
    if (adapter.trains(module + ".weight")) continue;
    fields.refuse("modules_to_save",
                  str("model.adapter.modules_to_save = ", in_quotes(adapter.trained),
                      " does not have ", in_quotes(module)));
  }
  if (fields.count("r") != adapter.rank) {
    are_alike = false;
    fields.refuse("r", str("model.adapter.rank is ", adapter.rank));
  }
  if (fields.number("lora_alpha") != adapter.alpha) {
    fields.refuse("lora_alpha", str("model.adapter.alpha is ", shortest(adapter.alpha)));
    are_alike = false;
  }
  const bool has_patterns = fields.has("rank_pattern") || fields.has("alpha_pattern");
  if (are_alike && (has_patterns || !adapter.ranks.empty() || !adapter.alphas.empty())) {
    check_patterns(fields, adapter, model, adapter);
  }
  fields.refuse_unread(passed_over_adapter_keys());
  fields.finish();
}

// The file's tensors by their parameters' names, and their names in the file.
using StoredNames = std::map<std::string, std::string>;

StoredNames stored_names(const weights::TensorFiles& files) {
  StoredNames names;
  for (const auto& [name, stored] : files.tensors()) {
    const std::string_view own(name);
    std::string parameter(own.substr(own.starts_with(kAdapterPrefix) ? kAdapterPrefix.size() : 0));
    if (parameter.ends_with(str(".", kAdapterLengths))) parameter += ".weight";
    names.emplace(std::move(parameter), name);
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

nn::AdapterOptions options_in(const std::string& folder) {
  const json::Value config = config_in(folder, "ADAPTERS");
  ConfigFields fields(config);
  fields.choice("peft_type", "LORA", {"LORA"});
  nn::AdapterOptions options{.rank = fields.count("r"), .alpha = fields.number("lora_alpha")};
  options.is_rank_stabilized = fields.flag("use_rslora", false);
  options.has_lengths = fields.flag("use_dora", false);
  options.ranks = numbers_in<std::int64_t>(fields, "rank_pattern");
  options.alphas = numbers_in<double>(fields, "alpha_pattern");
  options.trained = join(fields.texts("modules_to_save").value_or(std::vector<std::string>()), "|");
  fields.refuse_unread(passed_over_adapter_keys());
  fields.finish();
  return options;
}

// The adapters of a folder, to be added to the tensors of a model's files.
class Merging {
 public:
  Merging(const std::string& adapters, const ModelFolder& model)
      : options_(options_in(adapters)),
        is_in_out_(is_gpt2(model)),
        files_(adapters, kAdapterTensorsName),
        stored_(stored_names(files_)),
        model_(model) {}

  // A tensor of the model's files as the merged model has it, of the same type.
  at::Tensor merged(const std::string& name, const at::Tensor& tensor) {
    const std::string parameter = with_prefix(name);
    if (const auto whole = take(parameter)) return fitting(name, *whole, tensor);
    const std::string linear = parameter.substr(0, parameter.rfind('.'));
    if (!parameter.ends_with(".weight")) return tensor;
    const auto a = take(str(linear, ".", kAdapterIn, ".weight"));
    const auto b = take(str(linear, ".", kAdapterOut, ".weight"));
    const auto lengths = take(str(linear, ".", kAdapterLengths, ".weight"));
    if (!a && !b && !lengths) return tensor;
    if (!a || !b) {
      throw ConfigError(str("the adapter of ", linear, " in ", quoted_path(files_.folder()),
                            " has no ", a ? kAdapterOut : kAdapterIn,
                            ": some of its tensors are missing"));
    }
    const std::int64_t in = tensor.size(is_in_out_ ? 0 : 1), out = tensor.size(is_in_out_ ? 1 : 0);
    const std::int64_t rank = options_.rank_of(linear);
    const bool fits = a->sizes() == at::IntArrayRef({rank, in}) &&
                      b->sizes() == at::IntArrayRef({out, rank}) &&
                      lengths.has_value() == options_.has_lengths &&
                      (!lengths || lengths->sizes() == at::IntArrayRef({out}));
    if (!fits) {
      throw ConfigError(str("the adapter of ", linear, " in ", quoted_path(files_.folder()),
                            " does not fit: its rank is ", rank, ", and the linear has ", in,
                            " inputs and ", out, " outputs"));
    }
    const nn::AdapterTensors parts{.in = *a, .out = *b, .lengths = lengths.value_or(at::Tensor())};
    ++merged_;
    return nn::merged(tensor, parts, options_.scale_of(linear), is_in_out_)
        .to(tensor.scalar_type());
  }

  std::int64_t linears() const { return merged_; }

  // Throws: ConfigError for adapters of what the model has not.
  void finish() const {
    std::vector<std::string> left;
    for (const auto& [parameter, name] : stored_) {
      if (!taken_.contains(parameter)) left.push_back(name);
    }
    if (taken_.empty()) {
      throw ConfigError(str(quoted_path(files_.folder()), ": has no tensor of an adapter"));
    }
    if (left.empty()) return;
    constexpr std::size_t kTold = 4;
    const std::size_t all = left.size();
    left.resize(std::min(all, kTold));
    throw ConfigError(str("the adapters in ", quoted_path(files_.folder()), " are not those of ",
                          quoted_path(model_.path()), ", which has no place for ", join(left, ", "),
                          all > kTold ? str(" and ", all - kTold, " more") : std::string()));
  }

 private:
  // Files of GPT-2 may leave out the prefix that adapters have.
  std::string with_prefix(const std::string& name) const {
    constexpr std::string_view kPrefix = "transformer.";
    const bool lacks_it = is_in_out_ && !name.starts_with(kPrefix) && !name.starts_with("lm_head.");
    return lacks_it ? str(kPrefix, name) : name;
  }

  std::optional<at::Tensor> take(const std::string& parameter) {
    const auto found = stored_.find(parameter);
    if (found == stored_.end()) return std::nullopt;
    taken_.insert(parameter);
    return files_.whole(found->second);
  }

  static at::Tensor fitting(const std::string& name, const at::Tensor& whole,
                            const at::Tensor& before) {
    if (whole.sizes() == before.sizes()) return whole.to(before.scalar_type());
    throw ConfigError(str(name, " is of another shape in the adapters than in the model"));
  }

  nn::AdapterOptions options_;
  bool is_in_out_;
  weights::TensorFiles files_;
  StoredNames stored_;
  const ModelFolder& model_;
  std::set<std::string> taken_;
  std::int64_t merged_ = 0;
};

}  // namespace

std::int64_t merge_adapters(const std::string& adapters, const ModelFolder& model,
                            const std::string& to, const std::string& card,
                            const std::function<void(const std::string& what)>& at) {
  Merging merging(adapters, model);
  const weights::TensorFiles files(model.path());
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [name, stored] : files.tensors()) {
    if (weights::is_weight_type(stored.type)) shards[stored.file].push_back(name);
  }
  std::error_code error;
  if (fs::equivalent(model.path(), to, error)) {
    throw ConfigError(str("TO = ", quoted_path(to), ": is the model's own folder"),
                      {"name another one"});
  }
  check_target(to, "TO");
  weights::NewModel merged(to);
  checkpoint::ModelIndex index{.series = merged.series(), .config = without_paths(model.config())};
  const auto count = static_cast<std::int32_t>(shards.size());
  for (const auto& [file, names] : shards) {
    weights::NamedTensors tensors;
    for (const std::string& name : names) {
      at(str("merging ", name));
      const at::Tensor tensor = files.whole(name);
      tensors.emplace_back(name, merging.merged(name, tensor).contiguous());
      index.total_bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
    const auto number = static_cast<std::int32_t>(index.names.size());
    const std::string name = checkpoint::model_file(number, count, merged.series());
    at(str("writing ", name));
    weights::write_safetensors(str(to, "/", name), tensors, {{"format", "pt"}}, [] {});
    index.names.push_back(names);
  }
  merging.finish();
  copy_other_files(model.path(), to, card);
  copy_tokenizer(adapters, to);
  merged.put_in_place(index, [] {});
  return merging.linears();
}

SavedAdapters read_adapters(const std::string& folder, const ModelFolder& model,
                            const nn::AdapterOptions& adapter) {
  check_config(folder, model, adapter);
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

weights::NamedTensors adapters_of(const weights::NamedTensors& state,
                                  const nn::AdapterOptions& adapter) {
  weights::NamedTensors adapters;
  for (const auto& [name, tensor] : state) {
    if (adapter.trains(name)) adapters.emplace_back(checkpoint::name_in_file(name), tensor);
  }
  return adapters;
}

weights::NamedTensors merged(const weights::NamedTensors& state, const ModelFolder& model,
                             const nn::AdapterOptions& adapter) {
  const std::map<std::string, at::Tensor> by_name(state.begin(), state.end());
  weights::NamedTensors all;
  for (const auto& [name, tensor] : state) {
    if (is_of_adapter(name)) continue;
    const std::string linear = name.substr(0, name.rfind('.'));
    const auto a = by_name.find(str(linear, ".", kAdapterIn, ".weight"));
    const bool is_adapted = a != by_name.end() && name.ends_with(".weight");
    if (!is_adapted) {
      all.emplace_back(name, tensor);
      continue;
    }
    nn::AdapterTensors parts{.in = a->second,
                             .out = by_name.at(str(linear, ".", kAdapterOut, ".weight"))};
    if (adapter.has_lengths) {
      parts.lengths = by_name.at(str(linear, ".", kAdapterLengths, ".weight"));
    }
    all.emplace_back(name, nn::merged(tensor, parts, adapter.scale_of(linear), is_gpt2(model)));
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
