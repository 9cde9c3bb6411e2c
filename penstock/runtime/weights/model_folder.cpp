#include "penstock/runtime/weights/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/files/checkpoint/model_files.h"

namespace penstock::weights {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

std::vector<std::string> safetensors_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator each(folder, error); !error && each != fs::directory_iterator();
       each.increment(error)) {
    const std::string name = each->path().filename();
    const bool is_adapter = name.starts_with("adapter_model");
    if (name.ends_with(".safetensors") && !is_adapter) files.push_back(name);
  }
  std::ranges::sort(files);
  return files;
}

std::map<std::string, std::set<std::string>> read_index_at(const std::string& path) {
  std::string text =
      read_foreign_file<CheckpointError>("index", path, checkpoint::kModelIndexBytesMax);
  return checkpoint::parse_model_index(std::move(text), path);
}

}  // namespace penstock::weights
