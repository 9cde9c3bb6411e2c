// The model and the options of a run, as its configuration says them.
//
// A run makes its Trainer of them, and its memory is told of them.  Knows no data.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/files/data/tokenizers.h"
#include "penstock/hugging_face/folder.h"
#include "penstock/nn/gpt.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/runtime/train/facts.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

// What is trained: its layers, and the loss of a microbatch.
struct Model {
  std::vector<nn::LayerSpec> layers = {};
  nn::Loss loss = {};
  std::string config = {};  // The config.json that is saved beside its weights.
  std::int64_t vocabulary = nn::kVocabulary;
  // Folder of model.type "hugging_face", and its adapters, if it has any.
  std::optional<hugging_face::ModelFolder> folder = {};
  std::optional<nn::AdapterOptions> adapter = {};
  bool merges_adapter = false;  // Merges the adapters when the model is saved.
  // Attention stays within documents, which end with this token; absent: it does not.
  std::optional<std::int64_t> document_end = {};
  // The folder's, where it has one.
  std::optional<data::Tokenizer> tokenizer = {};
  // A line for people, of what is trained where that is not all; else nothing.
  std::string summary = {};
  // Facts by which ranks see whether they have the same weights to begin with.
  train::Facts facts = {};
};

// What ranks compare of it: every value but those of one rank.
train::Facts facts_of(const config::Config& config);

// Reads config.json and the headers of the weights, where the model is a folder's; the notes of
// token files, where these have to say what ends a document.
// Throws: as hugging_face::ModelFolder and hugging_face::read_adapters(); ConfigError where the
// model has fewer positions than model.sequence_length, no linear that model.adapter.targets
// matches, or nothing says what ends a document.
Model model_of(const config::Config& config);
// The same without the data, for who asks for memory and times alone: what ends a document changes
// neither.
Model model_without_data(config::Config config);
// The same, whose weights of a folder's model nobody writes: the folder needs config.json alone.
Model model_without_weights(config::Config config);

// Whether states or parameters are in files or on the host between their uses.
bool offloads(const config::Config& config);

train::TrainerOptions options_of(const config::Config& config, const mesh::Shape& mesh,
                                 const config::Batch& batch);

}  // namespace penstock::run
