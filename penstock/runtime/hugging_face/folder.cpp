#include "penstock/hugging_face/folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "penstock/core/content_hash.h"
#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/adapter_files.h"
#include "penstock/files/checkpoint/model_files.h"
#include "penstock/runtime/hugging_face/families.h"
#include "penstock/runtime/hugging_face/generation_config.h"
#include "penstock/runtime/weights/atomic_file.h"

namespace penstock::hugging_face {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHead = "lm_head.weight";
constexpr std::string_view kGpt2Prefix = "transformer.";
constexpr std::size_t kListed = 8;  // Tensors that one problem names.
constexpr std::uint64_t kPortion = std::uint64_t{1} << 22;
constexpr std::uint64_t kSampleBytes = 4096;  // Bytes of a tensor for what ranks compare.
constexpr std::size_t kOtherBytesMax = std::size_t{1} << 28;

constexpr const char* kCardName = "README.md";
constexpr const char* kGenerationName = "generation_config.json";
constexpr const char* kTokenizerName = "tokenizer.json";
constexpr std::array<const char*, 10> kTokenizerFiles = {kTokenizerName,
                                                         "tokenizer_config.json",
                                                         "special_tokens_map.json",
                                                         "added_tokens.json",
                                                         "vocab.json",
                                                         "merges.txt",
                                                         "vocab.txt",
                                                         "tokenizer.model",
                                                         "chat_template.jinja",
                                                         "chat_template.json"};
constexpr std::array<const char*, 7> kLicenses = {
    "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.txt", "USE_POLICY.md", kCardName};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return str("[", join(shape, ", "), "]");
}

const std::string& embedding_name(const nn::DecoderOptions& options) {
  static const std::string kGpt2 = "transformer.wte.weight", kLlama = "model.embed_tokens.weight";
  return options.form == nn::DecoderForm::Gpt2 ? kGpt2 : kLlama;
}

// What older folders hold and no model needs: masks, and the frequencies of rotary positions.
bool is_constant(std::string_view tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") ||
         tensor.ends_with(".rotary_emb.inv_freq");
}

void add_problem(std::vector<std::string>& problems, std::vector<std::string> tensors,
                 std::string_view what) {
  if (tensors.empty()) return;
  const std::size_t more = tensors.size() - std::min(tensors.size(), kListed);
  tensors.resize(tensors.size() - more);
  problems.push_back(
      str(what, ": ", join(tensors, ", "), more > 0 ? str(" and ", more, " more") : std::string()));
}

bool are_equal(const weights::TensorFiles& files, const std::string& a, const std::string& b) {
  const std::uint64_t bytes = files.tensors().at(a).bytes;
  if (files.tensors().at(b).bytes != bytes) return false;
  for (std::uint64_t done = 0; done < bytes; done += kPortion) {
    if (files.bytes_of(a, done, kPortion) != files.bytes_of(b, done, kPortion)) return false;
  }
  return true;
}

// transformers with PEFT applies adapters that it finds beside a model.
void check_adapters(const std::string& path, bool has_model) {
  std::error_code error;
  if (!fs::exists(str(path, "/", checkpoint::kAdapterConfigName), error)) return;
  if (!has_model) {
    throw ConfigError(str("model.path = ", quoted_path(path), ": has adapters and no model"),
                      {"train from the model's own folder, with model.adapter.merge = true to save "
                       "a whole model"});
  }
  throw ConfigError(str("model.path = ", quoted_path(path), ": has a model and adapters, in ",
                        checkpoint::kAdapterConfigName, ": which is meant?"),
                    {"for the model without them, move adapter_config.json and "
                     "adapter_model.safetensors to another folder",
                     "for the model with them, name that folder by model.adapter.path"});
}

}  // namespace

ModelFolder::ModelFolder(const std::string& path, FirstWeights weights)
    : path_(path), weights_(weights) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw ConfigError(str("model.path = ", quoted_path(path), ": no such folder"));
  }
  const std::string file = path + "/config.json";
  check_adapters(path, fs::exists(file, error));
  config_ = read_foreign_file("the configuration of a model", file, json::kBytesMax);
  const json::Value config =
      json::parse(std::make_shared<json::Source>(json::Source{.name = file, .text = config_}));
  options_ = read_options(config);
  standard_deviation_ = read_standard_deviation(config);
  if (weights != FirstWeights::Folder) return;
  tensors_ = std::make_shared<const weights::TensorFiles>(path);
  check_tensors();
}

// A folder of GPT-2's body alone has names without the body's own; those are taken as well.  So is
// the head's of the one tensor that is both head and embedding.
std::string ModelFolder::stored_name(const std::string& parameter) const {
  const auto& stored = tensors_->tensors();
  if (stored.contains(parameter)) return parameter;
  if (parameter.starts_with(kGpt2Prefix)) {
    const std::string of_body = parameter.substr(kGpt2Prefix.size());
    if (stored.contains(of_body)) return of_body;
  }
  const bool is_head = options_.tie_embeddings && parameter == embedding_name(options_);
  return is_head && stored.contains(kHead) ? kHead : parameter;
}

void ModelFolder::check_tensors() const {
  const auto& stored = tensors_->tensors();
  std::set<std::string> known;
  std::vector<std::string> missing, shapes, types, extra;
  for (const nn::DecoderParameter& parameter : nn::decoder_parameters(options_)) {
    const std::string name = stored_name(parameter.name);
    known.insert(name);
    const auto found = stored.find(name);
    if (found == stored.end()) {
      missing.push_back(parameter.name);
    } else if (found->second.shape != parameter.shape) {
      shapes.push_back(str(name, " is ", shape_text(found->second.shape), " and config.json says ",
                           shape_text(parameter.shape)));
    } else if (!weights::is_weight_type(found->second.type)) {
      types.push_back(str(name, " is ",
                          checkpoint::kScalarTypes[static_cast<std::size_t>(found->second.type)]));
    }
  }
  const std::string embedding = stored_name(embedding_name(options_));
  for (const auto& [name, tensor] : stored) {
    if (known.contains(name) || is_constant(name)) continue;
    if (name == kHead && stored.contains(embedding) && are_equal(*tensors_, kHead, embedding)) {
      continue;
    }
    extra.push_back(name);
  }
  std::vector<std::string> problems;
  add_problem(problems, missing, "missing");
  add_problem(problems, shapes, "of another shape");
  add_problem(problems, types, "of a type that is not F32, F64, BF16 or F16");
  add_problem(problems, extra, "not the model's");
  if (problems.empty()) return;
  if (std::ranges::find(extra, kHead) != extra.end()) {
    problems.emplace_back(
        "config.json ties the head to the embedding, and the folder has two different ones");
  }
  throw CheckpointError(str("the weights in ", quoted_path(path_), " do not fit its config.json"),
                        problems);
}

std::string ModelFolder::name() const {
  const json::Value config = json::parse(std::make_shared<json::Source>("config.json", config_));
  const auto& members = std::get<json::Value::Object>(config.data);
  if (const json::Member* const member = json::find(members, "_name_or_path")) {
    const auto* const said = std::get_if<std::string>(&member->value.data);
    std::error_code error;
    if (said != nullptr && std::ranges::count(*said, '/') == 1 &&
        std::string_view("/.~").find(said->front()) == std::string_view::npos &&
        said->back() != '/' && !fs::exists(*said, error)) {
      return *said;
    }
  }
  return last_part(path_);
}

std::vector<nn::LayerSpec> ModelFolder::layers(const LayerChoices& choices) const {
  nn::DecoderOptions options = options_;
  options.adapter = choices.adapter;
  options.document_end = choices.document_end;
  options.recomputes = choices.recomputes;
  nn::FillParameter fill = nn::normal_parameters(standard_deviation_, options_.norm_offset);
  if (tensors_) {
    fill = [folder = *this](const std::string& name, at::Tensor& to, const partition::Cut& cut) {
      const std::string stored = folder.stored_name(name);
      folder.tensors_->read(stored, to,
                            partition::box_of(cut, folder.tensors_->tensors().at(stored).shape));
    };
  }
  if (weights_ != FirstWeights::Unset) {
    return nn::decoder_layers(options, std::move(fill), choices.fill_of_adapters);
  }
  const auto nothing = [](const std::string&, at::Tensor&, const partition::Cut&) {};
  return nn::decoder_layers(options, nothing, nothing);
}

checkpoint::ScalarType ModelFolder::type_of(const std::string& parameter) const {
  if (!tensors_) return checkpoint::ScalarType::F32;
  return tensors_->tensors().at(stored_name(parameter)).type;
}

agreement::Facts ModelFolder::facts() const {
  using agreement::Fact;
  const agreement::Facts described = {{Fact::ModelConfig, content_hash(config_)}};
  if (!tensors_) return described + agreement::Facts{{Fact::ModelWeights, "random"}};
  std::uint64_t samples = 0;
  std::string all;
  for (const auto& [name, tensor] : tensors_->tensors()) {
    all += str(name, " ", static_cast<int>(tensor.type), shape_text(tensor.shape), "\n");
    const std::uint64_t middle = tensor.bytes / 2;
    samples = mix(samples ^ stable_hash(tensors_->bytes_of(name, middle, kSampleBytes)));
  }
  return described + agreement::Facts{{Fact::ModelTensors, content_hash(all)},
                                      {Fact::ModelWeights, str(samples)}};
}

namespace {

void copy_file(const std::string& from, const std::string& to, std::string_view name) {
  std::error_code error;
  const std::string path = str(from, "/", name);
  if (!fs::is_regular_file(path, error)) return;
  std::string text = read_foreign_file("a file of a model", path, kOtherBytesMax);
  if (name.ends_with("_config.json")) text = without_paths(text);
  weights::write_atomically(str(to, "/", name), {text});
}

}  // namespace

void copy_other_files(const std::string& from, const std::string& to,
                      const std::optional<std::string>& card, const std::set<std::int64_t>& ends) {
  std::error_code error;
  if (card) weights::write_atomically(str(to, "/", kCardName), {*card});
  if (fs::equivalent(from, to, error)) return;
  for (const std::string_view name : kTokenizerFiles) copy_file(from, to, name);
  for (const std::string_view name : kLicenses) {
    if (!card || name != kCardName) copy_file(from, to, name);
  }
  if (ends.empty()) return copy_file(from, to, kGenerationName);
  const std::string text = without_paths(generation_config_with(ends, from));
  weights::write_atomically(str(to, "/", kGenerationName), {text});
}

bool copy_tokenizer(const std::string& from, const std::string& to) {
  std::error_code error;
  for (const std::string_view name : kTokenizerFiles) copy_file(from, to, name);
  return fs::is_regular_file(str(from, "/", kTokenizerName), error);
}

std::string last_part(const std::string& path) {
  return fs::path(path + "/.").lexically_normal().parent_path().filename().string();
}

std::string without_paths(const std::string& text) {
  std::optional<json::Value> value;
  try {
    value = json::parse(std::make_shared<json::Source>("a file of a model", text));
  } catch (const ParseError&) {
    return text;
  }
  const auto* const members = std::get_if<json::Value::Object>(&value->data);
  if (members == nullptr) return text;
  std::string changed = text;
  for (auto member = members->rbegin(); member != members->rend(); ++member) {  // Spans stay right.
    const auto* const path = std::get_if<std::string>(&member->value.data);
    const bool is_path = path != nullptr && path->size() > 1 && (*path)[0] == '/' &&
                         (member->key.ends_with("_path") || member->key.ends_with("_file"));
    if (!is_path) continue;
    const json::Span span = member->value.span;
    changed.replace(span.begin, span.end - span.begin, json_quote(last_part(*path)));
  }
  return changed;
}

void check_target(const std::string& folder, const char* key) {
  const std::pair<std::string_view, const char*> in_the_way[] = {
      {checkpoint::kModelName, "which loaders prefer to the files that are saved"},
      {checkpoint::kAdapterConfigName, "whose adapters loaders add to the model that is saved"}};
  for (const auto& [name, why] : in_the_way) {
    std::error_code error;
    if (!fs::exists(str(folder, "/", name), error)) continue;
    throw ConfigError(str(key, " = ", quoted_path(folder), ": has ", name, ", ", why),
                      {"save to another folder, or remove that file"});
  }
}

}  // namespace penstock::hugging_face
