#include "penstock/files/checkpoint/checkpoints_at.h"

#include <filesystem>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/manifest.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;

}  // namespace

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  return fs::exists(str(path, "/", kManifestName), error);
}

std::string directory_in(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw ConfigError(str(quoted_path(path), " is not a directory"));
  }
  const std::string inner = path + "/checkpoints";
  return fs::is_directory(inner, error) ? inner : path;
}

std::vector<Found> checkpoints_at(const std::string& path) {
  if (is_checkpoint(path)) return {{.folder = path}};
  const std::string directory = directory_in(path);
  auto all = checkpoints_in(directory);
  if (all.empty()) throw ConfigError(str("no checkpoint in ", quoted_path(directory)));
  return all;
}

}  // namespace penstock::checkpoint
