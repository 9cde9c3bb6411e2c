// A Hugging Face folder as a model to train: config.json and its safetensors files.
//
// run/ trains one, C++ users make their layers of one.  docs/hugging_face.md says what is
// supported.  Knows no ranks: a rank reads the tensors of the layers that it makes.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "penstock/core/agreement/facts.h"
#include "penstock/files/checkpoint/safetensors_header.h"
#include "penstock/nn/decoder.h"
#include "penstock/runtime/weights/tensor_files.h"

namespace penstock::hugging_face {

// The source of the first weights.
enum class FirstWeights : std::uint8_t {
  Folder,
  Random,  // Normal, of config.json's initializer_range; norms 1, biases 0.
  Unset,   // Nobody writes any: for who asks what a model takes, and not what it computes.
};

// What the layers have that the folder does not say.
struct LayerChoices {
  std::optional<nn::AdapterOptions> adapter = {};  // Present: adapters alone are trained.
  nn::FillParameter fill_of_adapters = nn::fill_adapter;
  std::optional<std::int64_t> document_end = {};  // Same as DecoderOptions::document_end.
  bool recomputes = false;                        // Same as DecoderOptions::recomputes.
};

class ModelFolder {
 public:
  // Reads config.json and the headers of the folder's weights; it needs none where others are
  // meant.
  // Throws: ConfigError for a family or a value that is not supported (families.h), and for a
  // folder that cannot be read; CheckpointError for files that break their format, and for tensors
  // that are missing, not the model's, of another shape or no floating type, each by its name.
  explicit ModelFolder(const std::string& path, FirstWeights weights = FirstWeights::Folder);

  const std::string& path() const { return path_; }
  // The name that others know it by: config.json's _name_or_path where that is one of the hub's,
  // "HuggingFaceTB/SmolLM2-135M", else the last part of the path.
  std::string name() const;
  const nn::DecoderOptions& options() const { return options_; }
  // config.json, as it was read.
  const std::string& config() const { return config_; }

  // The model.  The folder's weights are read when a layer is made.
  // Throws: ConfigError for adapters of linears that the model has not.
  std::vector<nn::LayerSpec> layers(const LayerChoices& choices = {}) const;

  // The type that a parameter has in the folder; F32 of random ones.
  checkpoint::ScalarType type_of(const std::string& parameter) const;

  // What tells this model from another one: of config.json, of the tensors, and of some bytes of
  // each.
  agreement::Facts facts() const;

 private:
  std::string stored_name(const std::string& parameter) const;
  void check_tensors() const;

  std::string path_;
  std::string config_;
  nn::DecoderOptions options_;
  FirstWeights weights_;
  double standard_deviation_ = 0.0;                      // Deviation of random weights.
  std::shared_ptr<const weights::TensorFiles> tensors_;  // None where they are not the folder's.
};

// The files beside config.json and the weights that a folder's readers want: the tokenizer's,
// generation_config.json, and licenses.  Copies those that `from` has, each whole or not at all,
// without paths of this machine.  `card`: what README.md is to be; absent: the one that `from` has.
// `ends`: tokens that generation_config.json is to name as ends of a text, besides its own.
// Throws: CheckpointError with the path and the system's reason.
void copy_other_files(const std::string& from, const std::string& to,
                      const std::optional<std::string>& card = {},
                      const std::set<std::int64_t>& ends = {});
// The same of the tokenizer and its chat template alone.  Returns whether `from` has a tokenizer.
bool copy_tokenizer(const std::string& from, const std::string& to);

// "tuned" of "/data/tuned/": what others may see of a path of this machine.
std::string last_part(const std::string& path);

// A JSON text whose paths of this machine, in members "..._path" and "..._file" of the outermost
// object, are their last parts alone; any other text as it is.
std::string without_paths(const std::string& text);

// A folder that a model is going to be saved to, as `key` says.
// Throws: ConfigError where a file there would be loaded instead of what is saved.
void check_target(const std::string& folder, const char* key = "run.save");

}  // namespace penstock::hugging_face
