// Low-rank adapters as the two files that PEFT loads: their names and their configuration.
//
// A run saves them at its end (hugging_face/adapter_folder.h), `penstock checkpoint export` makes
// them of a checkpoint.  Knows no tensors' values.
// Source: the files that PEFT 0.21 writes; Hu et al., LoRA (2021), for what the numbers mean.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/files/checkpoint/manifest.h"

namespace penstock::checkpoint {

inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterTensorsName = "adapter_model.safetensors";
// The prefix of a parameter's name in kAdapterName's file.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

// The name of a parameter of adapters in kAdapterTensorsName's file.
std::string name_in_file(const std::string& parameter);

struct AdapterConfig {
  std::optional<std::string> base;  // The name of the model that they are for, where it is known.
  std::int64_t rank = 0;
  double alpha = 0.0;
  double dropout = 0.0;
  std::vector<std::string> targets;  // The last parts of the linears' names.
  bool is_in_out = false;            // Their weights are [in, out], as GPT-2's.
  bool is_rank_stabilized = false;
  bool has_lengths = false;  // DoRA.
  // Numbers by regular expressions for the ends of linears' names.
  std::vector<std::pair<std::string, double>> ranks;
  std::vector<std::pair<std::string, double>> alphas;
  std::vector<std::string> trained;  // Modules that are trained whole.
};

// adapter_config.json.
std::string to_text(const AdapterConfig& config);

bool has_adapters(const Manifest& manifest);
// The parameters that are saved as adapters: these, and modules that are trained whole beside them.
std::set<std::string> parameters_of_adapters(const Manifest& manifest);
// The configuration of the adapters in a run's checkpoint, whose facts have the numbers.  They do
// not have `base`, whose path another host may not share.
// Throws: CheckpointError for a checkpoint without adapters, or without those facts.
AdapterConfig adapter_config_of(const Manifest& manifest);

}  // namespace penstock::checkpoint
