#include "penstock/launch/program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamesMax = 4096;  // Candidates for "did you mean" in one directory.

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory.empty() ? "." : directory, error)) {
    if (names.size() == kNamesMax) break;
    names.push_back(entry.path().filename().string());
  }
  return names;
}

bool is_executable_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

std::string first_line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line(256, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(file.gcount()));
  return line.substr(0, line.find('\n'));
}

std::string how_to_run(const fs::path& path) {
  if (path.extension() == ".py") return str("run it with its interpreter: python3 ", path.string());
  if (path.extension() == ".sh") return str("run it with its interpreter: sh ", path.string());
  return str("make it executable: chmod +x ", path.string());
}

std::string resolve_path(const fs::path& path) {
  std::error_code error;
  if (is_executable_file(path)) return path.string();
  if (fs::is_directory(path, error)) {
    throw ConfigError(str("cannot run ", path.string(), ": it is a directory"));
  }
  if (fs::exists(path, error)) {
    throw ConfigError(str("cannot run ", path.string(), ": it is not executable"),
                      {how_to_run(path)});
  }
  const std::string near = did_you_mean(path.filename().string(), names_in(path.parent_path()));
  throw ConfigError(str("cannot run ", path.string(), ": no such file", near),
                    {str("looked for ", fs::absolute(path, error).string())});
}

std::string search(const std::string& name, const std::string& path_variable) {
  std::vector<std::string> candidates;
  for (const std::string& directory : split(path_variable, ':')) {
    const fs::path path = fs::path(directory.empty() ? "." : directory) / name;
    if (is_executable_file(path)) return path.string();
  }
  for (const std::string& directory : split(path_variable, ':')) {
    const auto names = names_in(directory);
    candidates.insert(candidates.end(), names.begin(), names.end());
  }
  std::vector<std::string> notes;
  std::error_code error;
  if (fs::exists(name, error)) notes.push_back(str("for the file in this directory say ./", name));
  throw ConfigError(
      str("cannot run \"", name, "\": no such program in PATH", did_you_mean(name, candidates)),
      std::move(notes));
}

}  // namespace

std::string resolve_program(const std::string& name, const std::string& path_variable) {
  if (name.empty()) throw ConfigError("cannot run \"\": the program's name is empty");
  if (name.find('/') != std::string::npos) return resolve_path(name);
  return search(name, path_variable);
}

ConfigError exec_error(const std::string& path, int error_number) {
  const std::string line = first_line_of(path);
  if (error_number == ENOENT && line.starts_with("#!")) {
    return ConfigError(str("cannot run ", path, ": its interpreter does not exist: ", line));
  }
  if (error_number == ENOEXEC) {
    return ConfigError(str("cannot run ", path, ": neither a program nor a script with a #! line"),
                       {how_to_run(path)});
  }
  return ConfigError(str("cannot run ", path, ": ", std::strerror(error_number)));
}

}  // namespace penstock::launch
