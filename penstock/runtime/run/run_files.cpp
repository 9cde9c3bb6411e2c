#include "penstock/runtime/run/run_files.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::run {

RunFiles::RunFiles(std::string folder, std::function<void(const std::string&)> tell)
    : folder_(std::move(folder)), tell_(std::move(tell)) {}

GrowingFile& RunFiles::lines(const std::string& name) {
  return lines_.try_emplace(name, path(name)).first->second;
}

void RunFiles::begin_lines(const std::string& name, const std::string& text) {
  lines(name).begin(text);
}

void RunFiles::append(const std::string& name, const std::string& line) {
  lines(name).append(line);
  try_lines();
  if (std::chrono::steady_clock::now() >= next_try_) try_files();
}

void RunFiles::replace(const std::string& name, std::string content) {
  contents_[name] = std::move(content);
  try_lines();
  try_files();
}

void RunFiles::try_lines() {
  for (auto& [name, file] : lines_) {
    file.try_again();
    file.failure().empty() ? works(name) : failed(name, file.failure());
  }
}

void RunFiles::try_files() {
  for (auto file = contents_.begin(); file != contents_.end();) {
    try {
      write_atomically(path(file->first), {file->second});
    } catch (const Error& error) {
      failed(file->first, error.message());
      next_try_ = std::chrono::steady_clock::now() + kBetweenTries;
      ++file;
      continue;
    }
    works(file->first);
    file = contents_.erase(file);
  }
}

void RunFiles::failed(const std::string& name, const std::string& why) {
  if (!failing_.emplace(name, why).second) return;
  tell_(str("cannot write ", quoted_path(path(name)), " now: ", why,
            "; the run goes on, and tries it again with each write"));
}

void RunFiles::works(const std::string& name) {
  if (failing_.erase(name) == 0) return;
  const auto file = lines_.find(name);
  const std::int64_t lost = file == lines_.end() ? 0 : file->second.lost();
  tell_(str(quoted_path(path(name)), " is written again",
            lost > 0 ? str("; ", lost, " lines of it are lost") : ""));
}

void RunFiles::finish() {
  for (auto& [name, file] : lines_) file.flush();
  try_lines();
  try_files();
  std::vector<std::string> names;
  std::vector<std::string> reasons;
  for (const auto& [name, why] : failing_) {
    names.push_back(name);
    reasons.push_back(str(name, ": ", why));
  }
  for (const auto& [name, file] : lines_) {
    if (file.lost() == 0) continue;
    reasons.push_back(str(file.lost(), " lines of ", name, " are lost"));
    if (!failing_.contains(name)) names.push_back(name);
  }
  if (names.empty()) return;
  throw CheckpointError(str("the run is over, and not all of it could be written to ",
                            quoted_path(folder_), ": ", join(names, ", ")),
                        reasons);
}

}  // namespace penstock::run
