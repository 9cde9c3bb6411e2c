// The model and the options of a run, as its configuration says them.
//
// A run makes its Trainer of them, and its memory is told of them.  Knows no data.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/config/resolve.h"
#include "penstock/hugging_face/folder.h"
#include "penstock/nn/gpt.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

// What is trained: its layers, and the loss of a microbatch.
struct Model {
  std::vector<nn::LayerSpec> layers;
  nn::Loss loss;
  std::int64_t vocabulary = nn::kVocabulary;
  // Of model.type "hugging_face": the folder that the layers' weights come from.
  std::optional<hugging_face::ModelFolder> folder;
};

// None for a model that is trained whole.
std::optional<nn::AdapterOptions> adapter_of(const config::ModelConfig& model);

// Reads config.json and the headers of the weights, where the model is a folder's.
// Throws: as hugging_face::ModelFolder; ConfigError where the model has fewer positions than
// model.sequence_length, or no linear that model.adapter.targets matches.
Model model_of(const config::ModelConfig& model);

train::TrainerOptions options_of(const config::Config& config, const mesh::Shape& mesh,
                                 const config::Batch& batch);

}  // namespace penstock::run
