// A folder of adapters as Hugging Face's PEFT loads it: adapter_config.json and
// adapter_model.safetensors.
//
// run/ saves the adapters of a folder's model to one, or merges them.  Knows no ranks.
// Source: the files that PEFT 0.21 writes.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/hugging_face/folder.h"
#include "penstock/runtime/nn/adapter.h"
#include "penstock/runtime/weights/safetensors.h"

namespace penstock::hugging_face {

// `state` are parameters of a rank's layers, by their names.
// The adapters alone, and modules that are trained whole, under PEFT's names:
// "base_model.model.<linear>.lora_A.weight".
weights::NamedTensors adapters_of(const weights::NamedTensors& state,
                                  const nn::AdapterOptions& adapter);
// The others, with the adapters' products added to their linears, in float.
// REQUIRES: each adapter's linear is in `state`.
weights::NamedTensors merged(const weights::NamedTensors& state, const ModelFolder& model,
                             const nn::AdapterOptions& adapter);

// The adapters of a folder that PEFT or penstock saved, to begin with.
struct SavedAdapters {
  nn::FillParameter fill;  // Gives an adapter's parameter its value.
  // What tells them from others.
  agreement::Facts facts;
};

// Throws: ConfigError for a folder without adapters, and for a rank, an alpha or linears that are
// not those of `adapter`; CheckpointError for files that break their format.
SavedAdapters read_adapters(const std::string& folder, const ModelFolder& model,
                            const nn::AdapterOptions& adapter);

// Writes to `to` the model with the adapters of a folder added, in the types and files that the
// model's folder has, with the tokenizer that the adapters have beside them, if any, and `card` as
// README.md.  `at` hears what is done next.
// Returns: the number of linears that have one.
// Throws: ConfigError for adapters that are not this model's; as read_adapters() and NewModel.
std::int64_t merge_adapters(
    const std::string& adapters, const ModelFolder& model, const std::string& to,
    const std::string& card,
    const std::function<void(const std::string& what)>& at = [](const std::string&) {});

// Refuses a folder that has a model: loaders would take its files for the adapters' model.
// Throws: ConfigError.
void check_adapter_target(const std::string& folder);

// Makes the tensors the folder's adapters, in place of those that are there.  While the two files
// are of two adapters, adapter_config.json is away; where it stays the same, it is there all the
// time.
// Throws: CheckpointError for a file that cannot be written; the folder then has the old adapters.
void write_adapters(const std::string& folder, const weights::NamedTensors& adapters,
                    const ModelFolder& model, const nn::AdapterOptions& adapter);

}  // namespace penstock::hugging_face
