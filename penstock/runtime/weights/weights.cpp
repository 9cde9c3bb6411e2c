#include "penstock/weights/weights.h"

#include <filesystem>
#include <map>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/weights/atomic_file.h"
#include "penstock/runtime/weights/model_folder.h"

namespace penstock::weights {
namespace {

namespace fs = std::filesystem;

std::string index_of(const std::string& folder) {
  return str(folder, "/", checkpoint::kModelIndexName);
}

// The only file of a folder without a model's usual names.
std::string only_file_in(const std::string& folder) {
  const std::vector<std::string> files = safetensors_in(folder);
  const bool is_shard = files.size() == 1 && files[0].find("-of-") != std::string::npos;
  if (files.size() == 1 && !is_shard) return files[0];
  std::vector<std::string> notes;
  if (!files.empty()) {
    notes.push_back(str("it has ", join(files, ", "),
                        is_shard ? ": one of several files, and nothing says which the others are"
                                 : ": read one of them by its path"));
  }
  if (is_there(folder + "/pytorch_model.bin") ||
      is_there(folder + "/pytorch_model.bin.index.json")) {
    notes.emplace_back(
        "it has pytorch_model.bin, which torch.save() wrote; transformers converts it: "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)");
  }
  throw CheckpointError(
      str(quoted_path(folder), " has no weights: neither ", checkpoint::kModelName, " nor ",
          checkpoint::kModelIndexName, ", nor one other file of safetensors"),
      notes);
}

}  // namespace

void write_index(const std::string& folder, const checkpoint::ModelIndex& index) {
  write_atomically(index_of(folder), {checkpoint::to_text(index)});
}

std::map<std::string, std::set<std::string>> read_index(const std::string& folder) {
  return read_index_at(index_of(folder));
}

std::vector<std::string> shards_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [shard, tensors] : read_index(folder)) names.push_back(shard);
  return names;
}

std::map<std::string, std::set<std::string>> model_files_in(const std::string& folder) {
  const std::string whole(checkpoint::kModelName);
  if (is_there(str(folder, "/", whole))) return {{whole, {}}};
  if (is_there(index_of(folder))) return read_index(folder);
  return {{only_file_in(folder), {}}};
}

NamedTensors read_weights(const std::string& path) {
  if (fs::is_regular_file(path)) return read_safetensors(path);
  NamedTensors all;
  for (const auto& [file, names] : model_files_in(path)) {
    std::set<std::string> missing = names;
    for (auto& [name, tensor] : read_safetensors(path + "/" + file)) {
      if (names.empty() || missing.erase(name) != 0) all.emplace_back(name, tensor);
    }
    if (!missing.empty()) {
      throw CheckpointError(str("\"", path, "/", file, "\" lacks tensor \"", *missing.begin(),
                                "\", which the index says it holds"));
    }
  }
  return all;
}

}  // namespace penstock::weights
